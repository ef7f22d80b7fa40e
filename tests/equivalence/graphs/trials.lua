--- What ranks of jobs and of hand-written loops share when their models meet other graphs: how one
--- device trains for comparison, and samples that are alike on every rank.
local T = require 'nnscaler.tensor'

local M = {
  steps = 2,
  limit = 1e-11, -- between tensors, relative
  how = { optimizer = { type = 'sgd', args = { lr = 0.05 } }, seed = 5 },
}

--- Draws the samples of all micro-batches.
---@param model { sample: fun(generator: nnscaler.Generator, micro: integer): any }
---@param micro integer micro-batches a step, of all scale units
---@return any[][] samples of each step
function M.samples(model, micro)
  local generator, steps = T.generator(11), {}
  for s = 1, M.steps do
    steps[s] = {}
    for k = 1, micro do steps[s][k] = model.sample(generator, k) end
  end
  return steps
end

return M
