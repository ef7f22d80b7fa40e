--- Generated programs on disk: <gen_savedir>/<model>/gencode0.lua. A file runs as long as its key
--- is that of the model; an edited file is never overwritten.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.codegen'
local lower = require 'nnscaler._C.lower'

local M = {}

-- A program's file: the first specialisation of a mode has the plain name.
local function file_name(program, mode, first, rank)
  local stem = ('gencode%d%s'):format(rank or 0, mode == 'training' and '' or '.eval')
  if not first then stem = stem .. '.' .. program:key():match('graph=(%x%x%x%x%x%x%x%x)') end
  return stem .. '.lua'
end

local function safe(name) return (name:gsub('[^%w_%-]', '_')) end

--- Text of the program to run and where it lies: an existing file with the same key, edited or not,
--- or a new one. Without a folder nothing is written.
---@param program nnscaler.Program
---@param opts { folder?: string, reuse?: string, model: string, mode: string, first: boolean,
---  rank?: integer }
---@return string text, string chunk, string|nil path
function M.obtain(program, opts)
  if not opts.folder or opts.folder == '' then
    return program:lua(), ('=gencode%d:%s'):format(opts.rank or 0, opts.mode)
  end
  local folder = opts.folder .. '/' .. safe(opts.model)
  local path = folder .. '/' .. file_name(program, opts.mode, opts.first, opts.rank)
  local reuse = opts.reuse or 'auto'
  if base.file_exists(path) then
    local text = base.file_read(path, 'codegen.read')
    local key, edited = lower.read_header(text, path)
    local same = key == program:key()
    if same and reuse ~= 'override' then
      if edited then
        log.warning('%s was edited by hand: it runs as it is', path)
      else
        log.info('Program %s is up to date', path)
      end
      return text, '@' .. path, path
    end
    if edited then
      fail('state', 'codegen.edited', ('%s was edited by hand, but belongs to another %s'):format(
        path, same and 'run (gen_reuse=override asks for a new one)' or 'model or setting'),
        'move it away, or set gen_savedir to another folder')
    end
    if reuse == 'match' and not same then
      fail('state', 'codegen.match', ('%s was written for another model or setting\n  file:  %s\n'
        .. '  model: %s'):format(path, key, program:key()),
        'set gen_reuse=moo to write it anew')
    end
    if not same then log.info('%s was for another model or setting: written anew', path) end
  end
  local text = program:lua()
  base.make_folder(folder)
  base.file_write(path, text, 'codegen.write')
  log.info('Program written to %s', path)
  return text, '@' .. path, path
end

return M
