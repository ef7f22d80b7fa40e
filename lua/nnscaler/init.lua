--- The library people program against. `require 'nnscaler'` is small; parts load at first use.
local parts = {
  nn = 'nnscaler.nn', optim = 'nnscaler.optim', data = 'nnscaler.data', models = 'nnscaler.models',
  tensor = 'nnscaler.tensor', functional = 'nnscaler.functional', log = 'nnscaler.log',
  trace = 'nnscaler.trace', recompute = 'nnscaler.recompute',
}

local M = {}

return setmetatable(M, {
  __index = function(t, key)
    local module = parts[key]
    if not module then return nil end
    local value = require(module)
    rawset(t, key, value)
    return value
  end,
})
