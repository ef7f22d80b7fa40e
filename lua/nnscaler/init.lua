--- The library people program against. `require 'nnscaler'` is small; parts load at first use.
local parts = {
  nn = 'nnscaler.nn', optim = 'nnscaler.optim', data = 'nnscaler.data', models = 'nnscaler.models',
  tensor = 'nnscaler.tensor', functional = 'nnscaler.functional', log = 'nnscaler.log',
  trace = 'nnscaler.trace', recompute = 'nnscaler.recompute',
}

local M = {}

--- Declares parameters of a recipe: `nnscaler.params { layers = { 4, 'number of blocks' } }`.
---@param specs table<string, table> name → { default, help, choices = {…}?, min = …?, type = …? }
---@return table<string, any> values
function M.params(specs) return require('nnscaler.params').declare(specs) end

--- Makes a trainer from the table that a recipe would return: `nnscaler.Trainer(args):run()`.
---@param args table keys of docs/configuration.md
---@param overrides? string[] `key.sub=value`, say from a script's `arg`
---@return nnscaler.Trainer
function M.Trainer(args, overrides)
  return require('nnscaler.trainer').new(require('nnscaler.job').from_table(args, overrides))
end

return setmetatable(M, {
  __index = function(t, key)
    local module = parts[key]
    if not module then return nil end
    local value = require(module)
    rawset(t, key, value)
    return value
  end,
})
