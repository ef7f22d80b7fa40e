--- Small training runs for specs: jobs with a folder of their own, and a log that is kept.
local base = require 'nnscaler._C.base'
local job = require 'nnscaler.job'
local trainer = require 'nnscaler.trainer'

local M = {}

local count = 0

--- Returns a new folder for one test.
---@return string
function M.folder()
  count = count + 1
  local path = os.tmpname()
  os.remove(path)
  path = path .. '.' .. count
  base.make_folder(path)
  return path
end

--- Removes what a test wrote.
---@param path string
function M.remove(path) os.execute(("rm -rf '%s'"):format(path)) end

--- Makes a trainer whose log lines go to `trainer.lines`.
---@param t table a job; eager and without a progress bar unless it says otherwise
---@return nnscaler.Trainer
function M.trainer(t)
  if t.eager == nil then t.eager = true end
  t.enable_progress_bar = false
  t.threads = t.threads or 1
  t.checkpoint = t.checkpoint or { no_save = true }
  local made = trainer.new(job.from_table(t))
  made.lines, made.log = {}, {}
  for _, level in ipairs { 'debug', 'info', 'warning', 'error' } do
    made.log[level] = function(text, ...)
      if select('#', ...) > 0 then text = text:format(...) end
      made.lines[#made.lines + 1] = (level == 'info' and '' or level .. ': ') .. text
    end
  end
  return made
end

--- Returns the lines of a log from the one that begins with `first` on.
---@param made nnscaler.Trainer
---@param first string
---@return string[]
function M.lines_from(made, first)
  local out
  for _, line in ipairs(made.lines) do
    if not out and line:sub(1, #first) == first then out = {} end
    if out then out[#out + 1] = line end
  end
  return out or {}
end

return M
