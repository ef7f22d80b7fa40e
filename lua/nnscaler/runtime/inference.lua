--- Forward alone: what an engine of programs gives for a sample in evaluation mode, and its loss.
local C = require 'nnscaler._C.runtime'
local comm = require 'nnscaler.runtime.groups'
local lockstep = require 'nnscaler.runtime.lockstep'
local sample_of = require 'nnscaler.runtime.sample'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local M = {}

---@class nnscaler.ProgramEngine
local Engine = {}

-- Stages of this rank that a micro-batch goes through, ascending.
function Engine:stages_of(micro)
  local shared, list = self.sharing, {}
  if not shared then return { 0 } end
  local lane = math.floor(micro / shared.units) % shared.stages.lanes
  for _, part in ipairs(shared.stages.parts) do
    if part.lane == lane then list[#list + 1] = part.stage end
  end
  return list
end

-- Runs the stages of this rank on a micro-batch of evaluation and returns what forward returns.
function Engine:evaluate(item, step, micro)
  local own, results = item.program.context, {}
  own.seed, own.step, own.micro, own.tag = self.options.seed, step, micro, 0
  local inputs = self:inputs(item.args, item.n)
  for _, stage in ipairs(self:stages_of(micro)) do
    local made = {
      C.run(item.program.stages[stage].F, self.tensors, {}, self.contents, inputs, own),
    }
    if made[1] ~= nil then results = made end
  end
  return results
end

--- What forward returns for a sample in evaluation mode; nothing where another rank makes it.
---@param sample any
---@param context { step: integer, micro: integer }
---@return any ...
function Engine:infer(sample, context)
  local items, shared = self:prepared({ sample }, false), self.sharing
  local micro, results = context.micro or 0, {}
  if shared and shared.lockstep then items = lockstep.evaluation(self, items[1]) end
  for _, item in ipairs(items) do
    local made = self:evaluate(item, context.step or 0, micro)
    if not item.idle then
      results = made
      self.told[micro + 1] = made[1] ~= nil and item.program.tells
    end
  end
  comm.flush()
  return unpack(results)
end

--- Loss of one micro-batch of the evaluation data, without gradients; of the ranks of a unit that
--- make it one has its weight, the others 0.
---@param sample any
---@param context { step: integer, micro: integer }
---@return number loss, number weight, any[] outputs
function Engine:eval_step(sample, context)
  local results = { self:infer(sample, context) }
  if not results[1] then return 0, 0, {} end -- another rank makes the loss
  sample_of.check_loss(results[1])
  local n = self.told[(context.micro or 0) + 1] and sample_of.weight(sample, results[2]) or 0
  return n > 0 and results[1]:item() or 0, n, { select(2, unpack(results)) }
end

--- Gives a class of engines the methods of this module.
---@param class nnscaler.ProgramEngine
function M.add(class)
  for name, method in sorted_pairs(Engine) do class[name] = method end
end

return M
