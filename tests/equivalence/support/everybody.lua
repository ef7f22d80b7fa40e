--- The group of all ranks; for what runs on a rank.
local groups = require 'nnscaler.runtime.groups'

---@return userdata nnscaler.Group
return function() return groups.group(groups.all_ranks()) end
