--- The API of generated programs: operators by name, release of tensors, gradients. Generated files
--- use nothing else, and the user who edits one needs nothing else.
local C = require 'nnscaler._C.runtime'
local profile = require 'nnscaler.runtime.profile'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local tensor = require 'nnscaler._C.tensor'
local watch = require 'nnscaler.runtime.watch'

local M = {
  --- release(a, b, …): drops tensors at their last use.
  release = C.release,
  --- accumulate(gradients, key, x): adds x to gradients[key] and takes x over.
  accumulate = C.accumulate,
  --- The same for a tensor that is still read later.
  accumulate_copy = C.accumulate_copy,
  --- into(gradients, key): where the first addend of gradients[key] is to be written; nil where
  --- there is one already, or any new tensor will do.
  into = C.into,
  --- vjp(operator, gradients, needs, …): gradients of one call by executing it under autograd.
  vjp = C.vjp,
}

--- start_sums(ctx, k): starts the sums of the sets of gradients up to k, which have their last
--- addends.
---@param ctx { states: nnscaler.States }
---@param k integer|nil nil: none
function M.start_sums(ctx, k) ctx.states:start(k) end

--- gather_ahead(weight, dim, whole, ranks): begins the gather of these arguments, which ends it.
---@param weight nnscaler.Tensor
---@param dim integer
---@param whole integer
---@param ranks integer[]
function M.gather_ahead(weight, dim, whole, ranks)
  require('nnscaler.runtime.groups').gather_ahead(weight, dim, whole, ranks)
end

--- The ranks that communicate together, as a program names them once; joined at first use.
---@param ranks integer[]
---@return integer[]
function M.group(ranks) return ranks end

local measured = false

-- What times or watches functions of a namespace, in runs that ask for it.
local function around(namespace)
  if watch.enabled then
    if not measured then
      measured, M.vjp = true, watch.call(nil, M.vjp)
    end
    return function(name, f) return watch.call(namespace .. '::' .. name, f) end
  end
  if not profile.enabled then return function(_, f) return f end end
  if not measured then -- a program takes these from here after its operators
    measured = true
    for _, name in ipairs { 'accumulate', 'accumulate_copy', 'vjp' } do
      M[name] = profile.timed('compute', name, M[name])
    end
    local begin = M.gather_ahead
    local timed = profile.timed('communication', 'gather_ahead', begin)
    begin, M.start_sums = profile.left_out(begin), profile.left_out(M.start_sums)
    M.gather_ahead = function(...) (profile.marks and begin or timed)(...) end
  end
  local kind = namespace == 'comm' and 'communication' or 'compute'
  return function(name, f) return profile.timed(kind, name, f) end
end

--- Functions of a namespace under the names that a program calls them by.
---@param namespace string 'aten', 'nnscaler', 'comm' or 'hook'
---@param names table<string, string> name → operator, with its overload ('add.Tensor')
---@return table<string, fun(...): any>
function M.operators(namespace, names)
  local functions = {}
  local wrapped = around(namespace)
  local own = { comm = 'nnscaler.runtime.groups', hook = 'nnscaler.policies.around' }
  if own[namespace] then
    local module = require(own[namespace])
    for name, operator in sorted_pairs(names) do
      functions[name] = wrapped(operator, module[operator])
    end
    return functions
  end
  for name, operator in sorted_pairs(names) do
    functions[name] = wrapped(operator, tensor.operator(namespace .. '::' .. operator))
  end
  return functions
end

--- random_key(ctx, key): the key of a draw inside of a module that is part of a larger model: under
--- the module's path, and after the draws of its earlier calls in the forward of the model.
---@param ctx { at: string, before: table<string, integer>, seen: table<string, integer>|nil }
---@param key string "<path below the module>:<operator>#<ordinal>"
---@return string
function M.random_key(ctx, key)
  local place, ordinal = key:match '^(.*)#(%d+)$'
  if ctx.seen then ctx.seen[place] = math.max(ctx.seen[place] or 0, ordinal + 1) end
  local joint = (ctx.at == '' or place:sub(1, 1) == ':') and '' or '.'
  return ('%s%s%s#%d'):format(ctx.at, joint, place, ordinal + (ctx.before[place] or 0))
end

--- items(table, first, last): a list of the elements at these indices, ascending or descending.
---@param from table
---@param first integer
---@param last integer
---@return nnscaler.Tensor[]
function M.items(from, first, last)
  local list = {}
  for i = first, last, first > last and -1 or 1 do list[#list + 1] = from[i] end
  return list
end

--- concat(a, b, …): one list of the elements of several.
---@param ... nnscaler.Tensor[]
---@return nnscaler.Tensor[]
function M.concat(...)
  local list = {}
  for k = 1, select('#', ...) do
    for _, x in ipairs((select(k, ...))) do list[#list + 1] = x end
  end
  return list
end

--- update(contents, key, x): the buffer's content after this micro-batch.
---@param contents table
---@param key string|integer
---@param x nnscaler.Tensor
function M.update(contents, key, x) contents[key] = x end

return M
