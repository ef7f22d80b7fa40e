--- A checkpoint that ranks write together: each its slices into the folder that rank 0 has begun;
--- rank 0 then writes state and manifest and gives the folder its name. What fails on one rank is
--- an error of all, and the checkpoints before are as they were.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'
local fail = require 'nnscaler.fail'
local rank_zero = require 'nnscaler.runtime.rank_zero'
local ranks = require 'nnscaler.ranks'
local slices = require 'nnscaler.trainer.slices'

local M = {}

local function message_of(err) return type(err) == 'table' and err.message or tostring(err) end

-- Raises on all ranks what went wrong on any.
local function check(t, draft, told)
  for r, text in ipairs(told) do
    if text:sub(1, 1) == '!' then
      if draft then draft:drop() end
      fail('state', 'checkpoint.save', ('rank %d: %s'):format(r - 1,
        (text:sub(2):gsub('^%[checkpoint.save%] ', ''))),
        checkpoint.newest_hint(t.args.checkpoint.save_dir))
    end
  end
end

--- Saves; a collective of all ranks.
---@param t nnscaler.Trainer
---@param contents table without tensors
---@param own table state of the optimizer of this rank
---@return boolean whether all ranks see the folder; nothing is written where one does not
function M.save(t, contents, own)
  local draft
  local folder = rank_zero.run(t.sharing.everybody, t.rank, function()
    local ok, err = pcall(function()
      draft = C.draft(contents.save_dir, contents.epoch, contents.step)
    end)
    if ok then return draft:folder() end
    if type(err) == 'table' then err.hint = checkpoint.newest_hint(contents.save_dir) end
    return error(err, 0)
  end)
  for _, sees in ipairs(ranks.exchange(base.file_exists(folder) and '1' or '')) do
    if sees == '' then
      if draft then draft:drop() end
      if not t.told_merged then
        t:say('info', 'Not every rank sees %s: rank 0 writes whole tensors.', contents.save_dir)
        t.told_merged = true
      end
      return false
    end
  end
  local list = slices.held(t.store, own)
  local keeps = t.store:keepers(list)
  local ok, written = pcall(function()
    return C.write_pieces(folder, slices.pieces(t.model, list, keeps, t.rank, t.world_size))
  end)
  local told = ranks.exchange(ok and written or '!' .. message_of(written))
  check(t, draft, told)
  local path = rank_zero.run(t.sharing.everybody, t.rank, function()
    local order = {}
    for i, leaf in ipairs(t.store.leaves) do order[i] = leaf.name end
    local request = checkpoint.request(contents)
    request.written, request.order = told, order
    local done, result = pcall(draft.finish, draft, request)
    if done then return result end
    draft:drop()
    if type(result) == 'table' then result.hint = checkpoint.newest_hint(contents.save_dir) end
    return error(result, 0)
  end)
  if t.rank == 0 then t.last_checkpoint = path end
  return true
end

return M
