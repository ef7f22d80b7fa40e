--- A checkpoint on its way to the disk. Ranks write together: each its slices into a folder that
--- rank 0 has begun; rank 0 then writes state and manifest and gives the folder its name. What
--- fails on one rank is an error of all, and the checkpoints before are as they were. With `beside`
--- files are written from copies while training goes on. The copies are made beside the forward and
--- backward of the next step; where code of the user runs before its update, which may change
--- weights, they are made at once.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local fail = require 'nnscaler.fail'
local ranks = require 'nnscaler.ranks'
local shapes = require 'nnscaler.checkpoint.shapes'
local slices = require 'nnscaler.trainer.slices'

local M = {}

---@class nnscaler.trainer.Saving
---@field t nnscaler.Trainer
---@field request table|nil of rank 0: what was to be saved beside tensors when it began
---@field beside boolean
---@field began number seconds, of base.clock
---@field draft nnscaler.CheckpointDraft|nil of rank 0
---@field written string|nil what this rank has written, or '!' and what went wrong
---@field task nnscaler.CheckpointTask|nil that this rank has begun
---@field finishing boolean whether all ranks have written their files
local Saving = {}
Saving.__index = Saving

-- Hooks between a save and the next update.
local kBetween = { 'on_epoch_start', 'on_step_start', 'before_zero_grad', 'after_zero_grad',
  'on_train_step_start', 'on_train_step_end', 'after_aggregate_train_step_outputs',
  'on_val_start', 'on_val_step_start', 'on_val_step_end', 'after_aggregate_val_step_outputs',
  'on_val_end', 'before_log_val_metrics' }

local function message_of(err) return type(err) == 'table' and err.message or tostring(err) end

-- What rank 0 does for all; an error of it reaches them, and says which checkpoint is there.
local function of_rank_zero(t, work)
  local function told()
    local ok, result = pcall(work)
    if ok then return result end
    if type(result) == 'table' then
      result.hint = result.hint or checkpoint.newest_hint(t.args.checkpoint.save_dir)
    end
    return error(result, 0)
  end
  if t.sharing then return t.sharing:of_rank_zero(told) end
  return told()
end

-- Whether each rank writes its slices: all have to see the folder then.
local function in_slices(t, folder)
  if not t.sharing or t.args.checkpoint.save_type == 'merged' then return false end
  for _, sees in ipairs(ranks.exchange(base.file_exists(folder) and '1' or '')) do
    if sees == '' then
      if not t.told_merged then
        t:say('info', 'Not every rank sees %s: rank 0 writes whole tensors.',
          t.args.checkpoint.save_dir)
        t.told_merged = true
      end
      return false
    end
  end
  return true
end

local function slices_of(t, own)
  local list = slices.held(t.store, own)
  return slices.pieces(t.model, list, t.store:keepers(list), t.rank, t.world_size)
end

-- Whole tensors, of rank 0.
local function wholes_of(t, own)
  local weights, states = t.store:weights(), t.store:optimizer(own).tensors
  if t.rank ~= 0 then return {} end
  return checkpoint.pieces { weights = shapes.to_file(t.model, weights),
    optimizer = shapes.to_file(t.model, states) }
end

--- Has the memory for copies taken beside the steps before the first save. A collective.
---@param t nnscaler.Trainer
function M.reserve(t)
  t.snapshot = C.snapshot()
  if t.sharing and t.args.checkpoint.save_type == 'merged' then return end
  t.snapshot:reserve((t.sharing and slices_of or wholes_of)(t, t.optimizer:state()))
end

--- Begins to save. A collective.
---@param t nnscaler.Trainer
---@param contents table without tensors
---@param own table state of the optimizer of this rank
---@param beside boolean
---@return nnscaler.trainer.Saving
function M.begin(t, contents, own, beside)
  local self = setmetatable({ t = t, beside = beside, began = base.clock(), finishing = false },
    Saving)
  local folder = of_rank_zero(t, function()
    self.request = checkpoint.request(contents)
    self.draft = C.draft(contents.save_dir, contents.epoch, contents.step)
    return self.draft:folder()
  end)
  local pieces = in_slices(t, folder) and slices_of(t, own) or wholes_of(t, own)
  local ok, err = pcall(function()
    if not beside then
      self.written = C.write_pieces(folder, pieces)
      return
    end
    self.task = t.snapshot:write(folder, pieces)
    if t.args.eager or t.hooks:any(kBetween) then t.snapshot:settle() end
  end)
  if not ok then self.written = '!' .. message_of(err) end
  return self
end

--- Ends the copying: weights change from here on.
function Saving:settle()
  local began = base.clock()
  self.t.snapshot:settle()
  self.t.save_wait = self.t.save_wait + base.clock() - began
end

--- Whether this rank has nothing to wait for.
---@return boolean
function Saving:done() return self.task == nil or self.task:done() end

-- What this rank has written, once it has.
local function outcome(self)
  if self.written then return self.written end
  local ok, result = pcall(self.task.result, self.task)
  return ok and result or '!' .. message_of(result)
end

-- Raises on all ranks what went wrong on any.
local function check(self, told)
  local t = self.t
  for r, text in ipairs(told) do
    if text:sub(1, 1) == '!' then
      if self.draft then self.draft:drop() end
      local message = text:sub(2):gsub('^%[checkpoint.save%] ', '')
      fail('state', 'checkpoint.save', t.sharing and ('rank %d: %s'):format(r - 1, message)
        or message, checkpoint.newest_hint(t.args.checkpoint.save_dir))
    end
  end
end

-- Has rank 0 finish what all have written.
local function finish(self, told)
  local order = {}
  for i, leaf in ipairs(self.t.store.leaves) do order[i] = leaf.name end
  self.request.written, self.request.order = told, order
  self.task = self.draft:finish(self.request)
end

--- Goes on to what follows, and waits for this rank's part until then; raises on all ranks what
--- went wrong on any. A collective.
---@return boolean whether the checkpoint is there
function Saving:go_on()
  local t = self.t
  if not self.finishing then
    local told = ranks.exchange(outcome(self))
    self.task, self.finishing = nil, true
    check(self, told)
    if self.draft then finish(self, told) end
    return false
  end
  t.last_checkpoint = of_rank_zero(t, function() return self.task:result() end)
  if self.beside then
    t:say('info', 'Checkpoint %s is written, in %.1f s beside training, which waited %.2f s.',
      t.last_checkpoint, base.clock() - self.began, t.save_wait)
  end
  return true
end

return M
