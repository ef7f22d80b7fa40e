--- The checkpoint that several ranks go on from. Where each finds the same one, each reads it;
--- else, as hosts do not share a disk, rank 0 reads and gives to all.
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local groups = require 'nnscaler.runtime.groups'
local rank_zero = require 'nnscaler.runtime.rank_zero'
local state = require 'nnscaler.checkpoint.state'
local tensor = require 'nnscaler.tensor'

local M = {}

-- Stands for a checkpoint whose files rank 0 has: `saved` there, nil elsewhere. All ranks make the
-- same calls.
local Given = {}
Given.__index = Given

-- What rank 0 says, on all ranks; an error of it reaches them.
local function from_first(self, work)
  return rank_zero.run(self.ranks, self.rank, work)
end

-- A tensor of rank 0 on all ranks.
local function give(self, x)
  local told = base.json_decode(from_first(self, function()
    return base.json_encode { shape = x.shape, dtype = x.dtype }
  end))
  return groups.group(self.ranks):broadcast(x or tensor.empty(told.shape, { dtype = told.dtype }),
    0)
end

function Given:names()
  return base.json_decode(from_first(self, function()
    return base.json_encode(self.saved:names())
  end))
end

function Given:read(name, slice)
  return give(self, self.saved and self.saved:read(name, slice))
end

function Given:check(weights)
  from_first(self, function()
    self.saved:check(weights)
    return ''
  end)
end

function Given:states()
  return base.json_decode(from_first(self, function()
    return base.json_encode(self.saved:states())
  end))
end

function Given:part(entry, _, cut)
  return cut(give(self, self.saved and self.saved:read(entry.name, nil, entry.state)))
end

-- Where this rank would read from, if anywhere.
local function own_path(t)
  local options = t.args.checkpoint
  local ok, path = pcall(checkpoint.resolve, options.resume_from, options.save_dir)
  return ok and path or nil
end

--- Opens it; nil where rank 0 finds none. A collective of all ranks.
---@param t nnscaler.Trainer
---@param find fun(t: nnscaler.Trainer): string|nil what rank 0 looks for; may raise
---@return nnscaler.Checkpoint|nil
function M.open(t, find)
  local path
  if t.rank == 0 then path = find(t) else path = own_path(t) end
  local ranks = t.sharing.everybody
  local all = groups.group(ranks):exchange(
    path and base.hash(base.file_read(path .. '/manifest.json')) or '')
  if all[1] == '' then return nil end
  local same = true
  for _, manifest in ipairs(all) do same = same and manifest == all[1] end
  if same then return checkpoint.open(path) end
  local self = setmetatable({ ranks = ranks, rank = t.rank }, Given)
  local told = base.json_decode(from_first(self, function()
    self.saved = checkpoint.open(path)
    return base.json_encode { path = path, epoch = self.saved.epoch, step = self.saved.step,
      state = state.encode(self.saved.state) }
  end))
  self.path, self.epoch, self.step = told.path, told.epoch, told.step
  self.state = state.decode(told.state)
  t.log.info('Not every rank finds %s: rank 0 gives it to all.', self.path)
  return self
end

return M
