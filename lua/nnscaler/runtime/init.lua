--- The API of generated programs: operators by name, release of tensors, gradients. Generated files
--- use nothing else, and a person who edits one needs nothing else.
local C = require 'nnscaler._C.runtime'
local reducer = require 'nnscaler.runtime.reducer'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local tensor = require 'nnscaler._C.tensor'

local M = {
  --- release(a, b, …): drops tensors at their last use.
  release = C.release,
  --- accumulate(gradients, key, x): adds x to gradients[key] and takes x over.
  accumulate = reducer.accumulate,
  --- The same for a tensor that is still read later.
  accumulate_copy = reducer.accumulate_copy,
  --- vjp(operator, gradients, needs, …): gradients of one call by executing it under autograd.
  vjp = C.vjp,
}

--- The ranks that communicate together, as a program names them once; joined at first use.
---@param ranks integer[]
---@return integer[]
function M.group(ranks) return ranks end

--- Functions of a namespace under the names that a program calls them by.
---@param namespace string 'aten', 'nnscaler' or 'comm'
---@param names table<string, string> name → operator, with its overload ('add.Tensor')
---@return table<string, fun(...): any>
function M.operators(namespace, names)
  local functions = {}
  if namespace == 'comm' then
    local comm = require 'nnscaler.runtime.comm'
    for name, operator in sorted_pairs(names) do functions[name] = comm[operator] end
    return functions
  end
  for name, operator in sorted_pairs(names) do
    functions[name] = tensor.operator(namespace .. '::' .. operator)
  end
  return functions
end

--- random_key(ctx, key): the key of a draw inside of a module that is part of a larger model.
---@param ctx table
---@param key string "<path below the module>:<operator>#<ordinal>"
---@return string
function M.random_key(ctx, key)
  if ctx.at == '' then return key end
  return ctx.at .. (key:byte(1) == 58 and '' or '.') .. key
end

--- update(contents, key, x): the buffer's content after this micro-batch.
---@param contents table
---@param key string|integer
---@param x nnscaler.Tensor
function M.update(contents, key, x) contents[key] = x end

return M
