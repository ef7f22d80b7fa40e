--- Runs a Lua file with the arguments of the command line: `nnscaler FILE.lua arguments…`. They are
--- the script's `...` and its global `arg`; those of the form name=value also set parameters that
--- the script declares.

local params = require 'nnscaler.params'

---@param file string
---@param arguments string[]
return function(file, arguments)
  local settings = {}
  for _, argument in ipairs(arguments) do
    if argument:find('^[%a_][%w_.]*[=!]') then settings[#settings + 1] = argument end
  end
  params.start(settings)
  local arg = { [0] = file }
  for i, argument in ipairs(arguments) do arg[i] = argument end
  rawset(_G, 'arg', arg)
  local chunk, message = loadfile(file)
  if not chunk then require 'nnscaler.fail'('usage', 'script.load', message) end
  chunk(unpack(arguments))
  require('nnscaler.ranks').finish()
end
