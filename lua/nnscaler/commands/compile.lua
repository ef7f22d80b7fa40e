--- `nnscaler compile`: writes the programs of a job, for the shapes of its first training and
--- validation micro-batches, without training.
local fail = require 'nnscaler.fail'
local run = require 'nnscaler.commands.run'
local setup = require 'nnscaler.trainer.setup'
local trainer = require 'nnscaler.trainer'

local M = {}

---@class nnscaler.compile.Opts
---@field job string path
---@field changes string[]
---@field log_level? string

--- Prints the paths of the programs; returns the exit code.
---@param opts nnscaler.compile.Opts
---@return integer
function M.run(opts)
  local job = run.load(opts)
  if job.eager then
    fail('usage', 'compile.eager', 'eager=true runs without a generated program', 'leave it out')
  end
  local t = trainer.new(job)
  setup.build(t)
  t.engine:compile(t.train_loader:get(0), true)
  if t.val_loader then t.engine:compile(t.val_loader:get(0), false) end
  for _, path in ipairs(t.engine.paths) do print(path) end
  return 0
end

--- Prints the parameters of a recipe.
M.help = run.help

return M
