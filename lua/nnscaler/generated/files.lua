--- Generated programs on disk: <gen_savedir>/<model>/gencode<rank>.lua, and beside each the Program
--- that it was written from (records.lua). A file runs as long as it belongs to the model, the
--- settings and the version of the run. New files replace old ones only when all of them are there;
--- an edited file is never overwritten.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.codegen'
local lower = require 'nnscaler._C.lower'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

---@class nnscaler.ProgramFile
---@field text string
---@field chunk string name for errors
---@field path string|nil nil: kept in memory
---@field fresh boolean whether it is to be written
---@field edited boolean|nil whether somebody has changed it since it was written

---@class nnscaler.FilePlace
---@field folder string of all programs; '': they are kept in memory
---@field reuse string 'auto', 'match', 'moo', 'override' or 'graph'
---@field model string
---@field mode string 'training' or 'evaluation'
---@field first boolean whether it is the first specialisation of its mode
---@field rank integer who asks
---@field settings string as options.settings gives them

local function safe(name) return (name:gsub('[^%w_%-]', '_')) end

--- The folder of a model's files; nil where they are kept in memory.
---@param place nnscaler.FilePlace
---@return string|nil
function M.folder(place)
  return place.folder ~= '' and place.folder .. '/' .. safe(place.model) or nil
end

--- A program's file: the first specialisation of a mode has the plain name.
---@param place nnscaler.FilePlace
---@param rank integer
---@param graph string hash of its graph
---@return string
function M.path(place, rank, graph)
  local stem = ('gencode%d%s'):format(rank, place.mode == 'training' and '' or '.eval')
  if not place.first then stem = stem .. '.' .. graph:sub(1, 8) end
  return ('%s/%s.lua'):format(M.folder(place), stem)
end

local function path_of(program, place, rank)
  return M.path(place, rank, program:key():match 'graph=(%x+)')
end

local function told(value)
  if value == nil then return 'not set' end
  return type(value) == 'table' and base.json_encode(value) or tostring(value)
end

--- The keys in which two settings differ, with both values as texts.
---@param old string
---@param new string
---@return { key: string, old: string, new: string }[]
function M.changed_settings(old, new)
  local out, all = {}, {}
  if old == new or old == '' then return out end
  local a, b = base.json_decode(old), base.json_decode(new)
  for _, t in ipairs { a, b } do
    for _, k in ipairs(sorted_keys(t)) do all[k] = true end
  end
  for _, k in ipairs(sorted_keys(all)) do
    local was, is = told(a[k]), told(b[k])
    if was ~= is then out[#out + 1] = { key = k, old = was, new = is } end
  end
  return out
end

-- What tells two headers apart, a line each.
local function differences(key, settings, new_key, new_settings)
  local lines = {}
  local names = { graph = 'the traced model', nnscaler = 'the version of nnscaler',
    format = 'the format', program = 'the program: its plan, or how it was lowered' }
  local old = {}
  for name, value in key:gmatch '(%w+)=(%S+)' do old[name] = value end
  for name, value in new_key:gmatch '(%w+)=(%S+)' do
    if old[name] ~= value then
      lines[#lines + 1] = ('%s (%s in the file, %s now)'):format(names[name] or name,
        old[name] or 'none', value)
    end
  end
  for _, c in ipairs(M.changed_settings(settings, new_settings)) do
    lines[#lines + 1] = ('%s: %s in the file, %s now'):format(c.key, c.old, c.new)
  end
  return table.concat(lines, '\n  ')
end

--- The file at a path as it runs.
---@param path string
---@param edited boolean
---@param text string
---@return nnscaler.ProgramFile
function M.there(path, text, edited)
  if edited then
    log.warning('%s was edited by hand: it runs as it is', path)
  else
    log.info('Program %s is up to date', path)
  end
  return { text = text, chunk = '@' .. path, path = path, fresh = false, edited = edited }
end

--- Decides which text runs as a rank's program; writes nothing. Raises where a file must not be
--- reused and must not be overwritten.
---@param program nnscaler.Program
---@param place nnscaler.FilePlace
---@param rank integer
---@return nnscaler.ProgramFile
function M.choose(program, place, rank)
  local settings = place.settings
  if not M.folder(place) then
    return { text = program:lua(settings), fresh = false,
      chunk = ('=gencode%d:%s'):format(rank, place.mode) }
  end
  local path, reuse = path_of(program, place, rank), place.reuse
  local anew = reuse == 'override' or reuse == 'graph'
  if base.file_exists(path) then
    local text = base.file_read(path, 'codegen.read')
    local key, edited, old = lower.read_header(text, path)
    local same = key == program:key() and old == settings
    if same and not anew then return M.there(path, text, edited) end
    local what = differences(key, old, program:key(), settings)
    if edited then
      fail('state', 'codegen.edited', same
        and ('%s was edited by hand; gen_reuse=%s would overwrite it'):format(path, reuse)
        or ('%s was edited by hand, but differs from this run in\n  %s'):format(path, what),
        'move it away, or set gen_savedir to another folder')
    end
    if not same then
      if reuse == 'match' then
        fail('state', 'codegen.match', ('%s differs from this run in\n  %s'):format(path, what),
          'set gen_reuse=moo to write it anew, or gen_savedir to another folder')
      end
      log.info('%s is stale, it is written anew; it differs in\n  %s', path, what)
    end
  end
  return { text = program:lua(settings), chunk = '@' .. path, path = path, fresh = true }
end

local writings = 0

--- How many files this process has written.
---@return integer
function M.count() return writings end

--- Writes the fresh ones among files that belong together, and records beside them: all of them to
--- names of their own first, then each in place of the old one.
---@param files nnscaler.ProgramFile[]
---@param records? nnscaler.Record[]
function M.commit(files, records)
  local fresh, written = {}, {}
  for _, file in ipairs(files) do
    if file.fresh and file.path then
      fresh[#fresh + 1] = file
      written[#written + 1] = { path = file.path, text = file.text, new = file.path .. '.new' }
    end
  end
  for _, record in ipairs(records or {}) do
    local new = ('%s.%d.new'):format(record.path, record.rank) -- ranks may share the folder
    written[#written + 1] = { path = record.path, text = record.text, new = new }
  end
  for _, file in ipairs(written) do
    base.make_folder(file.path:match '^(.*)/')
    base.file_write(file.new, file.text, 'codegen.write')
  end
  for _, file in ipairs(written) do
    local ok, message = os.rename(file.new, file.path)
    if not ok then fail('state', 'codegen.write', message) end
    writings = writings + 1
  end
  if #fresh == 1 then log.info('Program written to %s', fresh[1].path) end
  if #fresh > 1 then
    log.info('%d programs written to %s, %d reused', #fresh, fresh[1].path:match '^(.*)/',
      #files - #fresh)
  end
end

--- The path of the file that another rank has written for this one.
---@param place nnscaler.FilePlace
---@param rank integer
---@param graph string hash of its graph
---@return string
function M.expect(place, rank, graph)
  local path = M.path(place, rank, graph)
  if not base.file_exists(path) then
    fail('state', 'codegen.missing', ('rank %d finds no %s, which rank 0 wrote'):format(rank, path),
      'broadcast_strategy=none asks for a disk that all ranks share: use code, or compile here too')
  end
  return path
end

--- A text that another rank has sent, as the file of this one.
---@param program nnscaler.Program
---@param place nnscaler.FilePlace
---@param rank integer
---@param text string
---@return nnscaler.ProgramFile
function M.received(program, place, rank, text)
  if not M.folder(place) then
    return { text = text, chunk = ('=gencode%d:%s'):format(rank, place.mode), fresh = false }
  end
  local path = path_of(program, place, rank)
  local there = base.file_exists(path) and base.file_read(path, 'codegen.read') == text
  return { text = text, chunk = '@' .. path, path = path, fresh = not there }
end

return M
