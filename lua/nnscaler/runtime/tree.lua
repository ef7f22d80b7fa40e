--- Tensors of a model by logical name, as trees that generated programs walk:
--- 'transformer.h.0.weight' is tree.transformer.h[0].weight.
local M = {}

--- Keys of a dotted name; numbers are numbers.
---@param name string
---@return (string|integer)[]
function M.keys(name)
  local keys = {}
  for part in name:gmatch '[^.]+' do
    local number = part:match '^%d+$' and (part == '0' or part:sub(1, 1) ~= '0')
    keys[#keys + 1] = number and #part < 10 and tonumber(part) or part
  end
  return keys
end

--- The table that holds the leaf of a name, made on the way, and the leaf's key.
---@param tree table
---@param name string
---@return table parent, string|integer key
function M.place(tree, name)
  local keys = M.keys(name)
  for i = 1, #keys - 1 do
    local below = tree[keys[i]]
    if below == nil then
      below = {}
      tree[keys[i]] = below
    end
    tree = below
  end
  return tree, keys[#keys]
end

--- Makes in `copy` the tables that `tree` has, without its leaves.
---@param tree table
---@param copy table
function M.mirror(tree, copy)
  for key, below in next, tree do
    if type(below) == 'table' then
      copy[key] = {}
      M.mirror(below, copy[key])
    end
  end
end

--- Flat inputs of a program from forward's arguments, named as the tracer names them: the
--- argument's name (or position), then the keys of nested tables.
---@param args any[]
---@param n integer
---@param names string[]
---@param visit? fun(tensor: nnscaler.Tensor): nnscaler.Tensor
---@return table<string, nnscaler.Tensor>
function M.inputs(args, n, names, visit)
  local flat = {}
  local function walk(value, name)
    if type(value) == 'userdata' then
      flat[name] = visit and visit(value) or value
    elseif type(value) == 'table' then
      for key, item in next, value do walk(item, name .. '.' .. tostring(key)) end
    end
  end
  for i = 1, n do walk(args[i], names[i] or tostring(i)) end
  return flat
end

--- Whether nested tables contain a value.
---@param value any
---@param x any
---@return boolean
function M.holds(value, x)
  if type(value) ~= 'table' then return value == x end
  for _, item in next, value do
    if M.holds(item, x) then return true end
  end
  return false
end

return M
