--- Generated programs on disk: <gen_savedir>/<model>/gencode<rank>.lua. A file runs as long as it
--- belongs to the model, the settings and the version of the run. New files replace old ones only
--- when all of them are there; an edited file is never overwritten.
local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.job'
local fail = require 'nnscaler.fail'
local graph_of = require 'nnscaler._C.graph'
local log = require('nnscaler.log').logger 'nnscaler.codegen'
local lower = require 'nnscaler._C.lower'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

---@class nnscaler.ProgramFile
---@field text string
---@field chunk string name for errors
---@field path string|nil nil: kept in memory
---@field fresh boolean whether it is to be written
---@field edited boolean|nil whether a person changed it

---@class nnscaler.FileOpts
---@field folder? string
---@field reuse? string 'auto', 'match', 'moo', 'override' or 'graph'
---@field model string
---@field mode string 'training' or 'evaluation'
---@field first boolean whether it is the first specialisation of its mode
---@field rank? integer who asks, 0 unless told
---@field settings? string as M.settings gives them

local function safe(name) return (name:gsub('[^%w_%-]', '_')) end

local function folder_of(opts) return opts.folder .. '/' .. safe(opts.model) end

-- A program's file: the first specialisation of a mode has the plain name.
local function path_of(program, opts, rank)
  local stem = ('gencode%d%s'):format(rank, opts.mode == 'training' and '' or '.eval')
  if not opts.first then
    stem = stem .. '.' .. program:key():match 'graph=(%x%x%x%x%x%x%x%x)'
  end
  return ('%s/%s.lua'):format(folder_of(opts), stem)
end

local function plain(value)
  local kind = type(value)
  if kind == 'string' or kind == 'number' or kind == 'boolean' then return value end
  if kind ~= 'table' then return nil end
  local ok, text = pcall(base.json_encode, value)
  return ok and base.json_decode(text) or nil
end

--- The settings of a job that its programs depend on, in one line.
---@param job table
---@param world? { plan_ngpus: integer, runtime_ngpus: integer } as they are after defaults
---@return string
function M.settings(job, world)
  local out = {}
  for _, key in ipairs(core.keys()) do
    if key.programs then
      local value = job
      for part in key.path:gmatch '[^.]+' do
        if type(value) == 'table' then value = value[part] else value = nil end
      end
      if type(value) ~= 'table' or next(value) then out[key.path] = plain(value) end
    end
  end
  out['compute_config.plan_ngpus'] = world and world.plan_ngpus or 1
  out['compute_config.runtime_ngpus'] = world and world.runtime_ngpus or 1
  return base.json_encode(out)
end

local function told(value)
  if value == nil then return 'not set' end
  return type(value) == 'table' and base.json_encode(value) or tostring(value)
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
  if settings ~= new_settings and settings ~= '' then
    local a, b, all = base.json_decode(settings), base.json_decode(new_settings), {}
    for _, t in ipairs { a, b } do
      for _, k in ipairs(sorted_keys(t)) do all[k] = true end
    end
    for _, k in ipairs(sorted_keys(all)) do
      if told(a[k]) ~= told(b[k]) then
        lines[#lines + 1] = ('%s: %s in the file, %s now'):format(k, told(a[k]), told(b[k]))
      end
    end
  end
  return table.concat(lines, '\n  ')
end

--- Decides which text runs as a rank's program; writes nothing. Raises where a file must not be
--- reused and must not be overwritten.
---@param program nnscaler.Program
---@param opts nnscaler.FileOpts
---@param rank integer
---@return nnscaler.ProgramFile
function M.choose(program, opts, rank)
  local settings = opts.settings or ''
  if not opts.folder or opts.folder == '' then
    return { text = program:lua(settings), fresh = false,
      chunk = ('=gencode%d:%s'):format(rank, opts.mode) }
  end
  local path = path_of(program, opts, rank)
  local reuse = opts.reuse or 'auto'
  local anew = reuse == 'override' or reuse == 'graph'
  if base.file_exists(path) then
    local text = base.file_read(path, 'codegen.read')
    local key, edited, old = lower.read_header(text, path)
    local same = key == program:key() and old == settings
    if same and not anew then
      if edited then
        log.warning('%s was edited by hand: it runs as it is', path)
      else
        log.info('Program %s is up to date', path)
      end
      return { text = text, chunk = '@' .. path, path = path, fresh = false, edited = edited }
    end
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

--- Writes the fresh ones among files that belong together: all of them to names of their own first,
--- then each in place of the old one.
---@param files nnscaler.ProgramFile[]
function M.commit(files)
  local fresh = {}
  for _, file in ipairs(files) do
    if file.fresh and file.path then fresh[#fresh + 1] = file end
  end
  for _, file in ipairs(fresh) do
    base.make_folder(file.path:match '^(.*)/')
    base.file_write(file.path .. '.new', file.text, 'codegen.write')
  end
  for i, file in ipairs(fresh) do
    local ok, message = os.rename(file.path .. '.new', file.path)
    if not ok then fail('state', 'codegen.write', message) end
    if i == 1 and #fresh == 1 then log.info('Program written to %s', file.path) end
  end
  if #fresh > 1 then
    log.info('%d programs written to %s, %d reused', #fresh, fresh[1].path:match '^(.*)/',
      #files - #fresh)
  end
end

--- The file that another rank has written for this one.
---@param program nnscaler.Program
---@param opts nnscaler.FileOpts
---@param rank integer
---@return nnscaler.ProgramFile
function M.written(program, opts, rank)
  local path = path_of(program, opts, rank)
  if not base.file_exists(path) then
    fail('state', 'codegen.missing', ('rank %d finds no %s, which rank 0 wrote'):format(rank, path),
      'broadcast_strategy=none asks for a disk that all ranks share: use code, or compile here too')
  end
  return { text = base.file_read(path, 'codegen.read'), chunk = '@' .. path, path = path,
    fresh = false }
end

--- A text that another rank has sent, as the file of this one.
---@param program nnscaler.Program
---@param opts nnscaler.FileOpts
---@param rank integer
---@param text string
---@return nnscaler.ProgramFile
function M.received(program, opts, rank, text)
  if not opts.folder or opts.folder == '' then
    return { text = text, chunk = ('=gencode%d:%s'):format(rank, opts.mode), fresh = false }
  end
  local path = path_of(program, opts, rank)
  local there = base.file_exists(path) and base.file_read(path, 'codegen.read') == text
  return { text = text, chunk = '@' .. path, path = path, fresh = not there }
end

--- With gen_reuse=graph, the graph of an earlier run for the same settings and shapes, else the one
--- that `make` traces, which is kept for later.
---@param opts nnscaler.FileOpts
---@param shapes string what the graph is specialised to
---@param make fun(): userdata
---@return userdata graph
function M.graph(opts, shapes, make)
  if opts.reuse ~= 'graph' or not opts.folder or opts.folder == '' then return make() end
  local path = ('%s/graph.%s.json'):format(folder_of(opts), base.hash(shapes):sub(1, 8))
  local now = { format = 1, kind = 'nnscaler.traced', version = base.version, shapes = shapes,
    settings = opts.settings or '' }
  if base.file_exists(path) then
    local old = base.json_decode(base.file_read(path, 'codegen.graph'))
    local same = old.kind == now.kind
    for _, key in ipairs { 'format', 'version', 'shapes', 'settings' } do
      same = same and old[key] == now[key]
    end
    if same then
      log.warning('Graph of %s reused: changes of the model since are not seen', path)
      return graph_of.from_json(old.graph)
    end
    log.info('%s is for other settings, shapes or another version: traced anew', path)
  end
  local graph = make()
  now.graph = graph:json()
  base.make_folder(folder_of(opts))
  local new = ('%s.%d.new'):format(path, opts.rank or 0) -- ranks may share the folder
  base.file_write(new, base.json_encode(now), 'codegen.graph')
  local ok, message = os.rename(new, path)
  if not ok then fail('state', 'codegen.graph', message) end
  return graph
end

return M
