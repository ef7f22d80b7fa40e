--- Operators that LibTorch has no Meta kernel for, on tensors too large to run with: shapes come
--- from runs in small, and are those of the real call, or the operator is refused.
local C = require 'nnscaler._C.tensor'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local trace = require 'nnscaler.trace'

require 'tests.lua.support.own_ops' -- opens the library
local own = require('nnscaler.ops').tests_library

require('nnscaler.log').set_level 'error'

local MIB = 2 ^ 20

local function text(dtype, shape) return dtype .. ' [' .. table.concat(shape, ', ') .. ']' end

-- Types of the results by a trace, and the memory in bytes that it took.
local function traced(fn, args)
  local live = C.memory(true)
  local graph = trace(fn, args, { training = false })
  local _, peak = C.memory()
  local values, list = graph:values(), {}
  for i, output in ipairs(graph:outputs()) do
    local value = values[output.value + 1]
    list[i] = text(value.dtype, value.shape)
  end
  return list, peak - live
end

local function real(fn, args)
  local list = {}
  for i, x in ipairs { fn(unpack(args)) } do list[i] = text(x.dtype, x.shape) end
  return list
end

-- Each has more than 2^20 elements in its operands.
local cases = {
  { 'cdist', function(x, y) return aten.cdist(x, y, 2.0) end, { { 1100, 700 }, { 600, 700 } } },
  { 'searchsorted', function(sorted, x) return aten.searchsorted(sorted, x) end,
    { { 1100000 }, { 512, 9 } } },
  { 'bucketize', function(x, edges) return aten.bucketize(x, edges) end,
    { { 1100, 1000 }, { 10 } } },
  { 'grid_sampler', function(x, grid) return aten.grid_sampler(x, grid, 0, 0, false) end,
    { { 4, 3, 300, 310 }, { 4, 200, 170, 2 } } },
  { 'embedding_bag', function(weight, bags)
    local ids = T.zeros(500, { dtype = 'int64' })
    return (aten.embedding_bag(weight, ids, bags:to 'int64')) -- others are for its backward
  end, { { 70000, 16 }, { 100 } } },
  { 'quantile', function(x) return aten.quantile(x, 0.5, 1) end, { { 1200, 1000 } } },
  { 'rot90', function(x) return aten.rot90(x, 1, { 0, 1 }) end, { { 1100, 1000 } } },
  { 'rfft of an even length', function(x) return aten.fft_rfft(x):abs() end, { { 1100, 1000 } } },
  { 'rfft of an odd length', function(x) return aten.fft_rfft(x):abs() end, { { 1100, 1001 } } },
}

describe('a trace on more than 2^20 elements', function()
  for _, case in ipairs(cases) do
    local name, fn, shapes = unpack(case)
    it('knows what ' .. name .. ' gives', function()
      local args, elements = {}, 0
      for i, shape in ipairs(shapes) do
        args[i] = T.zeros(shape)
        elements = elements + args[i]:numel()
      end
      assert.is_true(elements > MIB)
      local got, took = traced(fn, args)
      assert.same(real(fn, args), got)
      assert.is_true(took < MIB, ('%d bytes for a trace'):format(took))
    end)
  end

  -- Result sizes that are squares or products of sizes cannot be told from small ones.
  for _, case in ipairs {
    { 'pdist', function(x) return aten.pdist(x, 2.0) end, { 1500, 700 } },
    { 'windows of a square', function(x)
      return own.windows(x, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 2, 2 })
    end, { 8, 4, 200, 200 } },
    { 'windows', function(x)
      return own.windows(x, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 2, 2 })
    end, { 8, 4, 200, 210 } },
    { 'windows by thirds', function(x)
      return own.windows(x, { 1, 3 }, { 1, 1 }, { 0, 0 }, { 1, 3 })
    end, { 80, 100, 1, 201 } },
  } do
    local name, fn, shape = unpack(case)
    it('refuses ' .. name, function()
      local ok, e = pcall(trace, fn, { T.zeros(shape) }, { training = false })
      assert.is_false(ok, name .. ' was traced')
      assert.matches('[trace.shape] which shapes ', tostring(e), 1, true)
      assert.matches('LibTorch says: the sizes of its results', tostring(e), 1, true)
      assert.matches('trace_shapes_spec.lua:', tostring(e), 1, true)
    end)
  end
end)
