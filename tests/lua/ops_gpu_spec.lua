-- Our kernels for GPUs as code of this processor (tests/gpu_on_host): all but the launch and the
-- shuffles of a GPU, of which there is none here.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local against = require 'tests.lua.support.gpu_kernels'
local nnscaler = require 'nnscaler'
local ops = require 'nnscaler.ops'
local runs = require 'tests.lua.support.runs'
local trace = require 'nnscaler._C.trace'

local own = ops.nnscaler

local build = (os.getenv 'NNSCALER_BIN' or 'build/nnscaler'):match '^(.*)/' or '.'
trace.load_library(build .. '/tests/gpu_on_host/libgpu_on_host.so')

local function with(use, fn, ...)
  use()
  local results = { pcall(fn, ...) }
  ops.gpu_on_host.use(false)
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, table.maxn(results))
end
local function on_host(fn, ...) return with(function() ops.gpu_on_host.use(true) end, fn, ...) end

describe('kernels for GPUs, on this processor', function()
  against(it, on_host)

  it('say why one did not start', function()
    assert.error_matches(function()
      with(ops.gpu_on_host.use_broken, ops.nnscaler.swiglu, T.ones { 3 }, T.ones { 3 })
    end, '[ops.gpu] a kernel did not start: out of order', 1, true)
  end)

  it('refuse more axes than they know', function()
    local shape, offset, full = {}, {}, {}
    for i = 1, 18 do shape[i], offset[i], full[i] = 1, 1, 3 end
    assert.error_matches(function()
      on_host(ops.nnscaler.dropout, T.ones(shape), 0.5, 'a', 7, 3, 1, offset, full)
    end, '[ops.gpu] 17 axes whose rows lie apart; expected at most 16', 1, true)
  end)

  it('refuse labels that are no class', function()
    assert.error_matches(function()
      on_host(ops.nnscaler.cross_entropy, T.ones { 2, 3 }, T.tensor({ 0, 3 }, { dtype = 'int64' }))
    end, '[ops.cross_entropy] target 3 of row 1; expected 0 to 2', 1, true)
  end)

  it('write no more elements than there are', function()
    for count = 0, 40 do assert.is_true(ops.gpu_on_host.stays_inside(count)) end
  end)

  it('leave other types to ATen', function()
    local x = T.ones({ 2, 8 }, { dtype = 'float64' })
    assert.is_true(on_host(ops.nnscaler.swiglu, x, x):equal(ops.nnscaler.swiglu(x, x)))
    local out, rstd = on_host(ops.nnscaler.rms_norm, x, { 8 }, nil, 1e-5)
    assert.equal('float64 float64', out.dtype .. ' ' .. rstd.dtype)
  end)
end)

-- Programs whose norms, gates, turns, losses and draws they make.
describe('training by kernels for GPUs, on this processor', function()
  local folder = runs.folder()
  teardown(function() runs.remove(folder) end)

  local function losses(model)
    local text = nnscaler.data.characters(nnscaler.data.shakespeare, { block = 16 })
    local args = { vocab = text.vocab, layers = 2, heads = 2, width = 32, block = 16 }
    if model == 'llama' then args.hidden, args.kv_heads, args.loss_chunk = 48, 1, 8 end
    if model == 'gpt' then args.dropout = 0.1 end
    local list = {}
    runs.trainer {
      model = { type = model, args = args }, dataset = text, micro_batch_size = 2, seed = 3,
      max_train_steps = 4, max_val_steps = 1, precision = 'fp32', eager = false,
      gen_savedir = folder .. '/' .. model,
      optimizer = { type = 'adamw', args = { lr = 1e-2 } },
      hook = { on_step_end = function(_, step, metrics) list[step] = metrics.train_loss end },
    }:run()
    return list
  end
  for _, model in ipairs { 'gpt', 'llama' } do
    it('goes as by those of the CPU: ' .. model, function()
      local want, got = losses(model), on_host(losses, model)
      assert.equal(4, #got)
      for step, loss in ipairs(want) do
        assert.is_true(math.abs(loss - got[step]) <= 2e-5 * loss, ('step %d'):format(step))
      end
      assert.matches('[ops.gpu] a kernel did not start', select(2, pcall(with,
        ops.gpu_on_host.use_broken, losses, model)), 1, true)
    end)
  end
end)

describe('the table of kernels in docs/design.md', function()
  local draws = { 'a#0', 7, 3, 1 }
  local function with_draws(...)
    local list = { ... }
    for _, draw in ipairs(draws) do list[#list + 1] = draw end
    return unpack(list)
  end
  local x, w, heads = T.ones { 4, 8 }, T.ones { 8 }, T.ones { 1, 2, 4, 8 }
  local y, score = T.zeros({ 4 }, { dtype = 'int64' }), w:narrow(0, 0, 1):view {}
  -- Statistics, which are float32 whatever the type.
  local column, row, sums, zero = T.ones { 4, 1 }, T.ones { 4 }, T.ones { 1, 2, 4 }, T.zeros {}
  local statistics = { [column] = true, [row] = true, [sums] = true, [zero] = true }
  -- A call of each operator.
  local calls = {
    rms_norm = { x, { 8 }, w, 1e-5 }, add_rms_norm = { x, x, { 8 }, w, 1e-5 },
    rms_norm_backward = { x, x, { 8 }, column, w, { true, true } },
    layer_norm = { x, { 8 }, w, w, 1e-5 }, add_layer_norm = { x, x, { 8 }, w, w, 1e-5 },
    layer_norm_backward = { x, x, { 8 }, column, column, w, w, { true, true, true } },
    swiglu = { x, x }, swiglu_backward = { x, x, x },
    rope = { x, x, x }, rope_backward = { x, x, x },
    cross_entropy = { x, y }, cross_entropy_backward = { score, x, y, row, zero },
    linear_scores = { x, x, y },
    linear_scores_backward = { row, row, x, x, y, row, 4, { true, true } },
    linear_cross_entropy_gradients = { x, x, y, -100, 4, { true, true, true } },
    dropout = { with_draws(x, 0.5) }, dropout_mask = { with_draws(x, 0.5) },
    gelu = { x }, gelu_backward = { x, x },
    attention = { heads, heads, heads },
    attention_backward = { heads, heads, heads, heads, heads, sums },
    normal_like = { with_draws(x, 'float32') }, uniform_like = { with_draws(x, 'float32') },
    bernoulli = { with_draws(x) }, fill_normal_ = { x:clone(), 0, 1, 'a', 7 },
    fill_uniform_ = { x:clone(), 0, 1, 'a', 7 },
    fill_trunc_normal_ = { x:clone(), 0, 1, -1, 1, 'a', 7 },
  }

  -- Whether the call starts a kernel for GPUs.
  local function starts(name, dtype)
    local list = { n = table.maxn(calls[name]), unpack(calls[name], 1, table.maxn(calls[name])) }
    for i = 1, list.n do
      local v = list[i]
      if type(v) == 'userdata' and v:is_floating_point() and not statistics[v] then
        list[i] = v:to(dtype)
      end
    end
    local ok, err = pcall(with, ops.gpu_on_host.use_broken, own[name], unpack(list, 1, list.n))
    if ok then return false end
    assert.matches('[ops.gpu] a kernel did not start: out of order', tostring(err), 1, true)
    return true
  end

  it('says what runs by kernels of ours', function()
    local page = base.file_read 'docs/design.md'
    local rows = page:match '| call | on a CPU | on a GPU |\n[^\n]+\n(.-)\n\n'
    local seen = {}
    for names, gpu in rows:gmatch '| ([^|]+) | [^|]+ | ([^|]+) |' do
      for name in names:gmatch '`([^`]+)`' do
        seen[name] = true
        -- Those that only use a mask of ours.
        if not name:find '^attention_dropout' then
          for _, dtype in ipairs { 'float32', 'bfloat16', 'float16' } do
            assert(starts(name, dtype) == (gpu:find '^ours' ~= nil), name .. ', ' .. dtype)
          end
        end
      end
    end
    for name in pairs(calls) do assert(seen[name], name .. ' is not in the table') end
  end)
end)
