--- What cannot be part of a graph is refused with the line that asked for it and what to do.
local T = require 'nnscaler.tensor'
local ops = require 'nnscaler.ops'
local trace = require 'nnscaler.trace'

local x = T.ones { 3, 4 }

-- The error of tracing `program` in evaluation mode, as text.
local function refusal(program, args)
  local ok, e = pcall(trace, program, args or { x }, { training = false })
  assert.is_false(ok, 'the trace should have been refused')
  return tostring(e)
end

-- Asserts that the message holds every piece (plain text).
local function says(message, ...)
  for _, piece in ipairs { ... } do
    assert.is_truthy(message:find(piece, 1, true), ('%q\nlacks\n%q'):format(message, piece))
  end
end

local here = 'trace_refuse_spec.lua:'

describe('a trace refuses', function()
  it('item', function()
    says(refusal(function(a) return a * a:sum():item() end),
      '[trace.data]', 'item()', here,
      '`says(refusal(function(a) return a * a:sum():item() end),`', 'hint:')
  end)

  it('tolist', function()
    says(refusal(function(a) return a:tolist() end), '[trace.data]', 'tolist()', here)
  end)

  it('< and <=', function()
    says(refusal(function(a) return a < a and a or a end), '[trace.data]', '<', here, 'x:lt(y)')
    says(refusal(function(a) return a <= a and a or a end), '[trace.data]', '<=', here)
    -- A number and a userdata have no common metamethod: LuaJIT's own error, with our hint.
    says(refusal(function(a) return a < 3 and a or a end), 'compare', here, 'x:lt(y)')
  end)

  it('the length operator', function()
    says(refusal(function(a) return a * #a end), '[trace.data]', '#', here, 'x:size(0)')
  end)

  it('math.random, os.time and os.clock, and gives them back', function()
    local random, time, clock = math.random, os.time, os.clock
    says(refusal(function(a) return a * math.random() end), '[trace.state] math.random', here,
      'F.dropout')
    says(refusal(function(a) return a * os.time() end), '[trace.state] os.time', here)
    says(refusal(function(a) return a * os.clock() end), '[trace.state] os.clock', here)
    assert.are.equal(random, math.random)
    assert.are.equal(time, os.time)
    assert.are.equal(clock, os.clock)
  end)

  it('a branch on a comparison', function()
    says(refusal(function(a)
      local big = a:sum():gt(3)
      if big then return a * 2 end
      return a
    end), '[trace.branch] nothing uses bool[]', 'aten::gt.Scalar', here, 'where')
  end)

  it('a branch on a 0-dim value', function()
    says(refusal(function(a)
      if a:sum() == 0 then return a * 2 end
      return a
    end), '[trace.branch] nothing uses float32[] that aten::sum makes', here,
      '`if a:sum() == 0 then return a * 2 end`')
  end)

  it('shapes that depend on data', function()
    says(refusal(function(a) return a:nonzero() end), '[trace.shape]', 'aten::nonzero', here,
      'where')
    says(refusal(function(a) return a:masked_select(a:gt(0)) end), 'aten::masked_select')
    says(refusal(function(a) return ops.aten.index(a, { a:gt(0) }) end),
      'aten::index.Tensor with a boolean mask', here)
    says(refusal(function(a) return a:gt(0):where() end), 'aten::where')
  end)

  it('random numbers from hidden state', function()
    local generator = T.generator(1)
    says(refusal(function(a) return a + T.randn({ 3, 4 }, { generator = generator }) end),
      '[trace.', 'aten::randn', here)
    says(refusal(function(a) return a:multinomial(1) end), '[trace.random] aten::multinomial',
      'F.dropout', here)
    says(refusal(function(a) return a:randn_like { generator = generator } end),
      '[trace.random] aten::randn_like.generator draws from a generator', 'F.randn_like', here)
  end)

  it('a write to an input', function()
    says(refusal(function(a) return a:add_(1) end), '[trace.write] aten::add_', "input '1'", here,
      'clone')
    says(refusal(function(a)
      a[0] = 1
      return a
    end), "input '1'", '`a[0] = 1`')
  end)

  it('a write to a tensor made outside', function()
    local outside = T.zeros { 3, 4 }
    says(refusal(function(a) return outside:add_(a) end), '[trace.write]',
      'made outside the model', here)
    assert.are.equal(0, outside:sum():item())
  end)

  it('a write to an expanded tensor', function()
    says(refusal(function(a)
      local y = a:sum(0, true):expand { 3, 4 }
      y:add_(1)
      return y
    end), '[trace.write]', 'expanded', here)
  end)

  it('a write that changes type or shape', function()
    says(refusal(function(a)
      local n = T.zeros({ 3, 4 }, { dtype = 'int64' })
      n:add_(a)
      return n
    end), '[trace.write] aten::add_', 'int64[3, 4]', here)
    says(refusal(function(a)
      local s = a:sum(0)
      s:add_(a)
      return s
    end), '[trace.write] aten::add_', 'float32[3, 4]', 'float32[4]', here)
  end)

  it('out arguments of several tensors, or of another shape', function()
    says(refusal(function(a)
      ops.aten['frexp.Tensor_out'](a,
        { mantissa = T.zeros { 3, 4 }, exponent = T.zeros { 3, 4 }:to 'int32' })
      return a
    end), '[trace.write] aten::frexp.Tensor_out', here)
    says(refusal(function(a)
      ops.aten['add.out'](a, a, { out = T.zeros { 4 } })
      return a
    end), '[trace.write] aten::add.out makes float32[3, 4]', 'fit into float32[4]', here)
  end)

  it('reading what a write may have changed', function()
    says(refusal(function(a)
      local y = a:t() * 1
      local flat = y:reshape { 12 }
      flat:add_(1)
      return y
    end), '[trace.alias]', here, '`flat:add_(1)`', 'view', 'clone')
  end)

  it('a large tensor made outside', function()
    local large = T.ones { 5000 }
    says(refusal(function(a) return a:sum() + large:sum() end),
      '[trace.constant]', 'float32[5000]', '4096', 'register_buffer', here)
  end)

  it('a tensor of an earlier trace', function()
    local kept
    says(refusal(function(a)
      local y = a * 2
      kept = kept or y
      return y + kept
    end), '[trace.tensor]', 'earlier trace', here)
  end)

  it('state that changes between runs', function()
    local calls = 0
    says(refusal(function(a)
      calls = calls + 1
      return a * calls
    end), '[trace.repeat] two traces of function differ', 'other=1', 'other=2')
  end)

  it('an operator without shapes, by name', function()
    says(refusal(function(a) return ops.aten.searchsorted(a, a:t()) end), '[trace.shape]',
      'aten::searchsorted', 'input value tensor must match', 'nnscaler.register_op', 'infer', here)
  end)

  it('a trace inside a trace', function()
    says(refusal(function(a)
      trace(function(b) return b end, { x })
      return a
    end), '[trace.nested]')
  end)

  it('shapes that do not fit, with both shapes', function()
    says(refusal(function(a) return a:matmul(a) end), '[3, 4]', 'matmul', here)
  end)
end)

describe('a training trace refuses', function()
  local function training_refusal(program)
    local ok, e = pcall(trace, program, { x })
    assert.is_false(ok)
    return tostring(e)
  end

  it('a loss that is not a scalar', function()
    says(training_refusal(function(a)
      return a * 2
    end), '[trace.loss]', 'float32[3, 4]', here, 'scalar')
  end)

  it('a loss that is not a floating number', function()
    says(training_refusal(function(a) return a:argmax() end), '[trace.loss]', 'int64[]')
  end)

  it('no loss at all', function()
    says(training_refusal(function() end), '[trace.loss] forward returns nothing', here)
    says(training_refusal(function() return 3 end), '[trace.loss]', 'not a tensor')
  end)

  it('tokens that are not number', function()
    says(training_refusal(function(a) return a:sum(), { tokens = a } end), '`tokens`',
      'float32[3, 4]')
  end)

  it('results that no graph can hold', function()
    says(training_refusal(function(a) return a:sum(), print end), '[trace.output] result 2',
      'function')
  end)
end)

describe('after a refusal', function()
  it('calls run again', function()
    refusal(function(a) return a:item() end)
    assert.are.equal(12, x:sum():item())
    assert.is_false(trace.tracing())
  end)
end)
