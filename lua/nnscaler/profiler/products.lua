--- What the kernels of matrix products take on the sizes of a program: each in turns with the
--- other, on one rank's threads.
local base = require 'nnscaler._C.base'
local median = require('nnscaler.profiler.calls').median
local ops = require 'nnscaler.ops'
local release = require('nnscaler._C.runtime').release
local tensor = require 'nnscaler.tensor'

local M = {}

local kLeast, kMost, kSeconds = 5, 200, 0.1 -- turns at least, at most, and long enough
local kGain = 0.97 -- of ATen's time; less is noise

-- The calls of both kernels on drawn operands.
local function calls(product)
  local generator = tensor.generator(1)
  local function drawn(...) return tensor.randn({ ... }, { generator = generator }) end
  local rows, inner, columns = product.rows, product.inner, product.columns
  local ours, aten = ops.nnscaler, ops.aten
  local by_op = {
    ['aten::linear'] = function()
      return aten.linear, ours.tiled_linear, drawn(rows, inner), drawn(columns, inner)
    end,
    ['nnscaler::linear_input'] = function()
      return ours.linear_input, ours.tiled_linear_input, drawn(rows, inner), drawn(inner, columns)
    end,
    ['nnscaler::linear_weight'] = function()
      return ours.linear_weight, ours.tiled_linear_weight, drawn(inner, rows), drawn(inner, columns)
    end,
  }
  local plain, tiled, a, b = by_op[product.op]()
  local kernels = { aten = function() release(plain(a, b)) end,
    tiles = function() release(tiled(a, b)) end }
  return kernels, function() release(a, b) end
end

--- Measures products of a program.
---@param products table[] as Program:products gives them
---@param threads integer of this rank
---@return table[] measured { call =, threads =, kernel =, aten_s =, tiles_s = }
function M.measure(products, threads)
  local out = {}
  for i, product in ipairs(products) do
    local kernels, done = calls(product)
    local times, spent = { aten = {}, tiles = {} }, 0
    for _, f in next, kernels do f() end
    while #times.aten < kLeast or spent < kSeconds and #times.aten < kMost do
      for _, name in ipairs { 'aten', 'tiles' } do
        local start = base.clock()
        kernels[name]()
        local seconds = base.clock() - start
        table.insert(times[name], seconds)
        spent = spent + seconds
      end
    end
    done()
    local aten_s, tiles_s = median(times.aten), median(times.tiles)
    out[i] = { call = product.key, threads = threads, aten_s = aten_s, tiles_s = tiles_s,
      kernel = tiles_s < kGain * aten_s and 'tiles' or 'aten' }
  end
  return out
end

return M
