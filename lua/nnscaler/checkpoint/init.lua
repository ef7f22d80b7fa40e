--- Checkpoints: folders `{epoch:04d}-{step:04d}` under one save folder, each with safetensors
--- files, the trainer's state (trainer.json) and a manifest. Saving is atomic and durable; loading
--- checks all before it changes anything.
---
---   checkpoint.save('runs/a', { epoch = 0, step = 100, weights = engine.parameters, state = {} })
---   local saved = checkpoint.load('last', { save_dir = 'runs/a', weights = engine.parameters })
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local log = require 'nnscaler.log'
local read = require 'nnscaler.checkpoint.read'
local state = require 'nnscaler.checkpoint.state'

local M = { open = read.open }

---@class nnscaler.checkpoint.Contents
---@field epoch integer
---@field step integer
---@field weights table[] { name =, data =, kind = 'parameter'|'buffer' }; those with
---  persistent = false are left out
---@field optimizer? table[] { parameter =, name =, data = }
---@field aliases? table[] { alias =, name = } of tied parameters (lists of two do too)
---@field state? table plain data
---@field pointers? string[] links that move to it; default { 'last' }
---@field copy_pointers? boolean whether they are copies, for file systems without links
---@field keep? integer number of checkpoints to keep

--- Pieces of files of whole tensors.
---@param contents { weights: table[], optimizer?: table[] }
---@return nnscaler.CheckpointPiece[]
function M.pieces(contents)
  local out = {}
  for _, w in ipairs(contents.weights) do
    if w.persistent ~= false then
      out[#out + 1] = { file = 'model.safetensors', parameter = w.name, data = w.data,
        kind = w.kind or (w.persistent and 'buffer' or 'parameter') }
    end
  end
  for _, s in ipairs(contents.optimizer or {}) do
    out[#out + 1] = { file = 'optimizer.safetensors', parameter = s.parameter, state = s.name,
      data = s.data }
  end
  return out
end

--- What a writer needs of a checkpoint beside its tensors.
---@param contents nnscaler.checkpoint.Contents
---@return table
function M.request(contents)
  local aliases = {}
  for _, a in ipairs(contents.aliases or {}) do
    aliases[#aliases + 1] = a.alias or a[1]
    aliases[#aliases + 1] = a.name or a[2]
  end
  return {
    save_dir = contents.save_dir, epoch = contents.epoch, step = contents.step, aliases = aliases,
    state = state.encode(contents.state or {}), pointers = contents.pointers or { 'last' },
    copy_pointers = contents.copy_pointers, keep = contents.keep,
  }
end

--- Says which checkpoint is there after one could not be saved.
---@param save_dir string
---@return string
function M.newest_hint(save_dir)
  local whole = C.list(save_dir)
  local newest = whole[#whole]
  return newest and ('the checkpoints before it are whole; the newest is %s/%s'):format(
    save_dir, newest.name) or 'no checkpoint was there before it'
end

--- Saves a checkpoint and returns its path. When it fails (a full disk) the earlier ones are whole
--- and the error says which is the newest.
---@param save_dir string
---@param contents nnscaler.checkpoint.Contents
---@return string path
function M.save(save_dir, contents)
  local request = M.request(contents)
  request.save_dir, request.pieces = save_dir, M.pieces(contents)
  local ok, result = pcall(C.save, request)
  if ok then return result end
  if type(result) == 'table' and result.kind == 'state' then
    result.hint = M.newest_hint(save_dir)
  end
  error(result, 0)
end

--- Lets a link (`best`) name a checkpoint that is already saved.
---@param save_dir string
---@param pointer string
---@param name string as in `list`
function M.point(save_dir, pointer, name) C.point(save_dir, pointer, name) end

--- Returns the whole checkpoints under a folder, oldest first.
---@param save_dir string
---@return { name: string, epoch: integer, step: integer, path: string }[]
function M.list(save_dir)
  local out = C.list(save_dir)
  for _, item in ipairs(out) do item.path = save_dir .. '/' .. item.name end
  return out
end

local function is_whole(path) return base.file_exists(path .. '/manifest.json') == 'file' end

--- Returns the folder of a checkpoint: of 'last' or 'best' under save_dir, of a path, or of the
--- last one under a path. A link that leads nowhere gives way to the newest whole checkpoint, and
--- the log says so.
---@param name string
---@param save_dir? string
---@return string path
function M.resolve(name, save_dir)
  local folder, pointer = save_dir, name
  if name ~= 'last' and name ~= 'best' then
    if is_whole(name) then return C.real_path(name) end
    folder, pointer = name, 'last'
    if base.file_exists(name) == nil and not C.real_path(name) then
      local parent, link = name:match '^(.*)/([^/]+)/?$'
      if link == 'last' or link == 'best' then folder, pointer = parent, link end
    end
  end
  local path = folder .. '/' .. pointer
  if is_whole(path) then return C.real_path(path) end
  local whole = M.list(folder)
  local newest = whole[#whole]
  if not newest or pointer == 'best' then
    fail('state', 'checkpoint.load', ("there is no checkpoint '%s' in '%s'%s"):format(pointer,
      folder, newest and '; the newest is ' .. newest.name or ''), 'name the folder of one')
  end
  log.logger('nnscaler.checkpoint').warning(
    "'%s' leads to no whole checkpoint; taking the newest, %s", path, newest.path)
  return C.real_path(newest.path)
end

---@class nnscaler.checkpoint.Target
---@field save_dir? string where 'last' and 'best' are
---@field weights? table[] { name =, data = }: overwritten, once everything was found right

--- Loads a checkpoint: checks it as a whole, reads the optimizer's tensors, then overwrites the
--- weights.
---@param name string 'last', 'best' or a path
---@param target nnscaler.checkpoint.Target
---@return { path: string, epoch: integer, step: integer, state: table, optimizer: table[] }
function M.load(name, target)
  local saved = read.open(M.resolve(name, target.save_dir))
  local weights
  if target.weights then
    weights = {}
    for _, w in ipairs(target.weights) do
      if w.persistent ~= false then weights[#weights + 1] = w end
    end
  end
  saved:check(weights)
  local optimizer = saved:optimizer()
  if weights then saved:copy_to(weights) end
  return { path = saved.path, epoch = saved.epoch, step = saved.step, state = saved.state,
    optimizer = optimizer }
end

return M
