--- Runs a graph node by node through eager operators: what a graph means, with nothing clever.
local ffi = require 'ffi'
local ops = require 'nnscaler.ops'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local T = require 'nnscaler.tensor'

local ctypes = { float32 = 'float', float64 = 'double', int64 = 'int64_t', int32 = 'int32_t' }

local function elements(value)
  local data = ffi.cast('const ' .. ctypes[value.dtype] .. '*', value.data)
  local list, count = {}, 1
  for _, size in ipairs(value.shape) do count = count * size end
  for i = 1, count do list[i] = tonumber(data[i - 1]) end
  return list
end

--- Returns the outputs of forward as a list.
---@param graph nnscaler.Graph without nested outputs
---@param leaves table<string, nnscaler.Tensor> inputs, parameters and buffers by name
---@return nnscaler.Tensor[] outputs
---@return table<integer, nnscaler.Tensor> values by id
return function(graph, leaves)
  local values = {}
  for _, value in ipairs(graph:values()) do
    if not value.producer then
      if value.role == 'constant' then
        values[value.id] = T.tensor(elements(value), { dtype = value.dtype }):reshape(value.shape)
      else
        values[value.id] = assert(leaves[value.name], 'no leaf ' .. value.name)
      end
    end
  end
  local function real(arg)
    if type(arg) ~= 'table' then return arg end
    if arg.value then return values[arg.value] end
    local list = {}
    for i, item in ipairs(arg) do list[i] = real(item) end
    return list
  end
  for _, node in ipairs(graph:nodes()) do
    local args = {}
    for name, arg in sorted_pairs(node.args) do args[name] = real(arg) end
    local space, name = node.op:match '^(%w+)::(.+)$'
    local results = { ops[space][name](args) }
    if type(results[1]) == 'table' then results = results[1] end
    for i, id in ipairs(node.outputs) do values[id] = results[i] end
  end
  local outputs = {}
  for i, output in ipairs(graph:outputs()) do outputs[i] = values[output.value] end
  return outputs, values
end
