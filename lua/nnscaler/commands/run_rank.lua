--- One rank of `nnscaler run -n N`: the whole run on a Lua machine of its own.
local base = require 'nnscaler._C.base'
local run = require 'nnscaler.commands.run'

---@param argument string the options of `nnscaler run` as JSON
---@return string
return function(argument)
  local opts = base.json_decode(argument)
  opts.changes = opts.changes or {}
  run.train(run.load(opts), opts)
  return 'done'
end
