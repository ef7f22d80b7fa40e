--- The hint of an error about a name that nobody declares: the nearest one that is.
local core = require 'nnscaler._C.job'

---@param name any as it was given
---@param names string[] that are declared
---@return string|nil hint nil where none is near
return function(name, names)
  local near = type(name) == 'string' and core.nearest(name, names)
  return near and near ~= '' and ("did you mean '%s'?"):format(near) or nil
end
