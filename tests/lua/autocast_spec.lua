--- Autocast in traced models: dtypes of results are LibTorch's own, casts are calls of the graph.
local Eager = require 'nnscaler.runtime.eager'
local F = require 'nnscaler.functional'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local examples = require 'nnscaler.verify.examples'
local nn = require 'nnscaler.nn'
local ops = require 'nnscaler.ops'
local sorted = require 'nnscaler.sorted'
local trace = require 'nnscaler.trace'

-- A copy of a call's arguments with `change` done to its tensors.
local function map(args, change)
  local function walk(value)
    if T.is_tensor(value) then return change(value) end
    if type(value) ~= 'table' then return value end
    local copy = {}
    for _, key in ipairs(sorted.sorted_keys(value)) do copy[key] = walk(value[key]) end
    return copy
  end
  local copy = { n = args.n }
  for i = 1, args.n do copy[i] = walk(args[i]) end
  return copy
end

local function dtypes_of(results)
  local list = {}
  map({ n = #results, unpack(results) }, function(x)
    list[#list + 1] = x.dtype
    return x
  end)
  return table.concat(list, ' ')
end

-- An einsum may be no product at all, and cells of an LSTM may stay in float32, which types of the
-- call do not tell; gradients are told their dtype.
local apart = { ['aten::einsum'] = true, ['aten::lstm.input'] = true,
  ['aten::_softmax_backward_data'] = true, ['aten::_log_softmax_backward_data'] = true,
  ['aten::convolution_backward'] = true, ['aten::native_layer_norm_backward'] = true }

describe('autocast', function()
  it('gives results the dtypes that LibTorch gives them', function()
    local compared, lowered, wrong = 0, 0, {}
    for name, list in sorted.sorted_pairs(examples.all(1)) do
      local known = name:find '^aten::' and not apart[name] and not list[1].refused
      for _, call in ipairs(known and list or {}) do
        local op = call.op:match '::(.+)$'
        for _, dtype in ipairs { 'float32', 'bfloat16' } do
          local flat = {}
          local args = map(call.args, function(x)
            flat[#flat + 1] = x:is_floating_point() and x:to(dtype) or x
            return flat[#flat]
          end)
          local ok, want = pcall(function()
            return dtypes_of { T.autocast('bfloat16', ops.aten[op], unpack(args, 1, args.n)) }
          end)
          local got
          local traced = ok and #flat > 0 and pcall(trace, function(...)
            local given, k = { ... }, 0
            local own = map(call.args, function()
              k = k + 1
              return given[k]
            end)
            local results = { T.autocast('bfloat16', ops.aten[op], unpack(own, 1, own.n)) }
            got = dtypes_of(results)
            return unpack(results)
          end, flat, { loss = false })
          if ok and traced and got ~= '' then
            if want ~= got then
              wrong[#wrong + 1] = ('%s of %s: %s, LibTorch gives %s'):format(call.op, dtype, got,
                want)
            end
            compared = compared + 1
            if dtype == 'float32' and want:find 'bfloat16' then lowered = lowered + 1 end
          end
        end
      end
    end
    assert.equal('', table.concat(wrong, '\n'))
    assert.is_true(compared > 300, compared .. ' calls')
    assert.is_true(lowered > 15, lowered .. ' calls in bfloat16')
  end)

  local Twice = nn.class 'Twice'
  function Twice:init() self.fc, self.norm = nn.Linear(8, 8), nn.LayerNorm(8) end
  function Twice:forward(s)
    return T.autocast('bfloat16', function()
      local x = F.gelu(self.fc(s.x))
      return F.mse_loss(self.fc(self.norm(x)), s.x)
    end)
  end
  local function sample()
    return { x = T.randn({ 4, 8 }, { generator = T.generator(2) }) }
  end

  it('casts a weight once for all its uses', function()
    local text = trace(Twice {}, { sample() }, { training = true }):text()
    local casts = select(2, text:gsub('aten::to%.dtype', ''))
    -- what the first product reads, its weight and bias, and what the loss reads
    assert.equal(4, casts, text)
    assert.equal(2, select(2, text:gsub('aten::linear', '')))
  end)

  it('gives the gradients that LibTorch gives', function()
    local want, got = Eager.new(Twice {}, { seed = 1 }), Program.new(Twice {}, { seed = 1 })
    got:prepare(sample())
    local a = want:train_step({ sample() }, { step = 0 })
    local b = got:train_step({ sample() }, { step = 0 })
    assert.equal(a.loss, b.loss)
    for _, parameter in ipairs(want.parameters) do
      local x, y = want:grad(parameter.name), got:grad(parameter.name)
      assert.equal('float32', y.dtype)
      local far = (x - y):norm():item() / x:norm():item()
      assert(far < 2 ^ -8, ('%s: %.3g'):format(parameter.name, far))
    end
  end)

  it('leaves float64 alone', function()
    local graph = trace(function(x) return T.autocast('bfloat16', ops.aten.mm, x, x) end,
      { T.zeros({ 2, 2 }, { dtype = 'float64' }) }, { loss = false })
    assert.is_nil(graph:text():find('aten::to', 1, true))
  end)
end)
