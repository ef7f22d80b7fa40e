-- The same GPT from the same weights on the same batches in PyTorch and here: 50 steps with
-- warm-up, the cosine's end, accumulation and uneven ignored labels give the same losses, gradient
-- norms, weights and moments. Weights travel by safetensors both ways.
local C = require 'nnscaler._C.checkpoint'
local log = require 'nnscaler.log'
local python = require 'tests.equivalence.pytorch.python'

local here = debug.getinfo(1, 'S').source:match '^@(.*)/[^/]*$'
local reason, folder = python.missing, nil

local reference = {}

setup(function()
  log.set_level 'warning'
  folder = python.written_by 'reference.py'
  if reason then return end
  for _, dtype in ipairs { 'float32', 'float64' } do
    reference[dtype] = C.read_safetensors(('%s/reference-%s.safetensors'):format(folder, dtype))
  end
end)

teardown(function()
  log.set_level 'info'
  python.remove()
end)

local function norm(x) return x:to('float64'):norm():item() end

local function difference(a, b) return norm(a:to('float64') - b:to('float64')) / norm(b) end

local function near(limit, name, a, b)
  local d = difference(a, b)
  assert(d <= limit, ('%s differs by %.3g; expected at most %g'):format(name, d, limit))
end

local function near_numbers(limit, name, ours, theirs)
  assert.equal(#theirs, #ours)
  for i, expected in ipairs(theirs) do
    local d = math.abs(ours[i] - expected) / math.abs(expected)
    assert(d <= limit, ('%s of step %d is %.17g, PyTorch has %.17g: %.3g apart; limit %g'):format(
      name, i, ours[i], expected, d, limit))
  end
end

-- The bias of the keys moves all scores of a query alike, so its gradient is rounding noise, which
-- Adam turns into steps of some size: weights may differ by as many steps as there were, moments
-- have to be small.
local function check_attention_bias(limit, name, ours, theirs, kind)
  local width = ours:numel() / 3
  local function part(x, i) return x:slice(0, i * width, (i + 1) * width) end
  near(limit, name .. ' (query)', part(ours, 0), part(theirs, 0))
  near(limit, name .. ' (value)', part(ours, 2), part(theirs, 2))
  if kind == 'w' then
    local moved = norm(part(ours, 1) - part(theirs, 1))
    assert(moved <= 50 * 3e-3 * math.sqrt(width), name .. ' (key) moved by ' .. moved)
  else
    local size = norm(part(ours, 1))
    assert(size <= 1e-6, name .. ' (key) is ' .. size)
  end
end

local function compare(dtype, eager, limit)
  if reason then return pending(reason) end
  local run = dofile(here .. '/reference.lua')(folder, dtype, eager)
  local expected = reference[dtype]
  near_numbers(limit, 'train_loss', run.losses, expected:read('losses'):tolist())
  near_numbers(limit, 'gnorm', run.gnorms, expected:read('gnorms'):tolist())
  local model = C.read_safetensors(run.checkpoint .. '/model.safetensors')
  local optimizer = C.read_safetensors(run.checkpoint .. '/optimizer.safetensors')
  local count = 0
  for _, key in ipairs(expected:names()) do
    local kind, name = key:match '^([wmv])/(.*)$'
    if kind then
      local ours = kind == 'w' and model:read(name)
        or optimizer:read(name .. (kind == 'm' and '/exp_avg' or '/exp_avg_sq'))
      local theirs = expected:read(key)
      assert.same(theirs.shape, ours.shape)
      assert.equal(dtype, ours.dtype)
      if name:find 'c_attn.bias' then
        check_attention_bias(limit, key, ours, theirs, kind)
      else
        near(limit, key, ours, theirs)
      end
      count = count + 1
    end
  end
  assert.equal(#model:names() * 3, count)
  local command = "'%s' '%s/read_back.py' '%s' '%s/reference-%s.safetensors'"
  local said, code = python.shell(command:format(python.binary, here, run.checkpoint, folder,
    dtype))
  assert(code == '0', said)
  local tensors, worst = said:match '^(%d+) tensors, worst (%S+)'
  assert.equal(count, tonumber(tensors))
  assert.is_true(tonumber(worst) <= limit)
end

describe('training equals PyTorch', function()
  it('in float64, eagerly', function() compare('float64', true, 1e-10) end)
  it('in float32, eagerly', function() compare('float32', true, 1e-5) end)
  it('in float64, as a generated program', function() compare('float64', false, 1e-10) end)
  it('in float32, as a generated program', function() compare('float32', false, 1e-5) end)
end)

-- Errors against float64: of losses, of gradient norms, of the weights after 50 steps.
local function errors(losses, gnorms, weight)
  local exact, out = reference.float64, { loss = 0, gnorm = 0, weight = 0 }
  local l, g = exact:read('losses'):tolist(), exact:read('gnorms'):tolist()
  for i = 1, #l do
    out.loss = out.loss + (losses[i] / l[i] - 1) ^ 2
    out.gnorm = out.gnorm + (gnorms[i] / g[i] - 1) ^ 2
  end
  local size = 0
  for _, key in ipairs(exact:names()) do
    local name = key:match '^w/(.*)$'
    -- what a key's bias adds is the same for all keys
    if name and not name:find 'c_attn.bias' then
      local want = exact:read(key)
      out.weight = out.weight + norm(weight(name):to 'float64' - want) ^ 2
      size = size + norm(want) ^ 2
    end
  end
  return { loss = math.sqrt(out.loss / #l), gnorm = math.sqrt(out.gnorm / #l),
    weight = math.sqrt(out.weight / size) }
end

describe('against float64', function()
  for _, precision in ipairs { 'bf16-mixed', 'bf16' } do
    it(precision .. ' errs at most twice as much as PyTorch does', function()
      if reason then return pending(reason) end
      local file = C.read_safetensors(('%s/reference-%s.safetensors'):format(folder, precision))
      local theirs = errors(file:read('losses'):tolist(), file:read('gnorms'):tolist(),
        function(name) return file:read('w/' .. name) end)
      local run = dofile(here .. '/reference.lua')(folder, 'float32', false, precision)
      local model = C.read_safetensors(run.checkpoint .. '/model.safetensors')
      local ours = errors(run.losses, run.gnorms, function(name) return model:read(name) end)
      for _, what in ipairs { 'loss', 'gnorm', 'weight' } do
        print(('  %-10s %-6s %.2e, PyTorch %.2e'):format(precision, what, ours[what],
          theirs[what]))
        assert.is_true(ours[what] > 1e-5) -- it is not float32 that is compared
        assert.is_true(ours[what] <= 2 * theirs[what])
      end
    end)
  end
end)
