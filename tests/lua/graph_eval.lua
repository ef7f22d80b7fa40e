--- Runs a graph node by node through eager operators: what a graph means, with nothing clever.
local ffi = require 'ffi'
local C = require 'nnscaler._C.tensor'
local T = require 'nnscaler.tensor'
local ops = require 'nnscaler.ops'
local register_op = require 'nnscaler.register_op'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local ctypes = { float32 = 'float', float64 = 'double', int64 = 'int64_t', int32 = 'int32_t' }

local function elements(value)
  local data = ffi.cast('const ' .. ctypes[value.dtype] .. '*', value.data)
  local list, count = {}, 1
  for _, size in ipairs(value.shape) do count = count * size end
  for i = 1, count do list[i] = tonumber(data[i - 1]) end
  return list
end

-- batch_norm writes its statistics; in a graph their new contents are outputs 2 and 3.
local function with_statistics(call, args)
  args.running_mean, args.running_var = args.running_mean:clone(), args.running_var:clone()
  return { call(args), args.running_mean, args.running_var }
end

-- A function of named arguments for an operator; that of a composite is its body.
local function call_of(op)
  local own = register_op.specs[op]
  if not own then
    local space, name = op:match '^(%w+)::(.+)$'
    return ops[space][name]
  end
  local body = own.spec.body
  return function(args)
    local list, n = {}, debug.getinfo(body, 'u').nparams
    for i = 1, n do list[i] = args[debug.getlocal(body, i)] end
    return body(unpack(list, 1, n))
  end
end

--- Returns the values of all tensors of a graph by id. Random operators draw as in the model.
---@param graph nnscaler.Graph
---@param leaves table<string, nnscaler.Tensor> inputs, parameters and buffers by name
---@return table<integer, nnscaler.Tensor>
return function(graph, leaves)
  local values, differentiable = {}, {}
  for _, value in ipairs(graph:values()) do
    differentiable[value.id] = value.requires_grad
    if value.role == 'constant' then
      values[value.id] = T.tensor(elements(value), { dtype = value.dtype }):reshape(value.shape)
    elseif not value.producer then
      values[value.id] = assert(leaves[value.name], 'no leaf ' .. value.name)
    end
  end
  local function real(arg)
    if type(arg) ~= 'table' then return arg end
    if arg.value then return values[arg.value] end
    local list = {}
    for i, item in ipairs(arg) do list[i] = real(item) end
    return list
  end
  C.reset_ordinals()
  for _, node in ipairs(graph:nodes()) do
    local args, with_grad = {}, false
    for name, arg in sorted_pairs(node.args) do args[name] = real(arg) end
    for _, id in ipairs(node.outputs) do with_grad = with_grad or differentiable[id] end
    local call = call_of(node.op)
    local function run()
      if node.op == 'aten::batch_norm' and #node.outputs == 3 then
        return with_statistics(call, args)
      end
      return { call(args) }
    end
    C.push_module(node.module)
    local results = with_grad and run() or T.no_grad(run)
    C.pop_module()
    if type(results[1]) == 'table' then results = results[1] end
    for i, id in ipairs(node.outputs) do values[id] = results[i] end
  end
  return values
end
