-- Our kernels on a GPU, against the same formulas in float64 as on the CPU
-- (tests/lua/ops_gpu_spec.lua).
local T = require 'nnscaler.tensor'
local against = require 'tests.lua.support.gpu_kernels'
local door = require 'nnscaler._C.tensor'

local function to(device, ...)
  local list = { n = select('#', ...), ... }
  for i = 1, list.n do
    if door.is_tensor(list[i]) then list[i] = list[i]:to(device) end
  end
  return unpack(list, 1, list.n)
end

local function on_gpu(fn, ...) return to('cpu', fn(to('cuda', ...))) end

-- A case of the kernels, skipped with the reason where it cannot run.
local function case(name, test)
  it(name, function()
    if not T.has_cuda() then return pending 'LibTorch finds no GPU here' end
    local problem = door.cuda_build().problem
    if problem ~= '' then return pending(problem) end
    test()
  end)
end

describe('kernels of ours on a GPU', function()
  against(case, on_gpu)

  case('give the same bits every time', function()
    local own = require('nnscaler.ops').nnscaler
    local x = T.randn({ 3000, 1024 }, { generator = T.generator(2) }):to('bfloat16'):to 'cuda'
    local w = T.ones({ 1024 }):to('bfloat16'):to 'cuda'
    local _, mean, rstd = own.layer_norm(x, { 1024 }, w, w, 1e-5)
    local function run()
      return { own.layer_norm_backward(x, x, { 1024 }, mean, rstd, w, w, { true, true, true }) }
    end
    local first = run()
    for _ = 1, 5 do
      for i, result in ipairs(run()) do assert.is_true(result:equal(first[i])) end
    end
  end)
end)
