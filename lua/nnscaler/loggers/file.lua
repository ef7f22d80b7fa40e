--- A file of one line a step that a resumed run goes on with: lines after the resumed step are
--- dropped, also half a line that a killed run left.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'

local M = {}

---@class nnscaler.loggers.File
local File = {}
File.__index = File

--- Opens the file.
---@param path string
---@param keep fun(line: string): boolean|nil which lines of an existing file stay; nil: none
---@return nnscaler.loggers.File
function M.open(path, keep)
  local folder = path:match('^(.*)/[^/]*$')
  if folder and folder ~= '' then base.make_folder(folder) end
  local kept = {}
  if keep and base.file_exists(path) == 'file' then
    for line in base.file_read(path):gmatch('([^\n]*)\n') do
      if keep(line) then kept[#kept + 1] = line .. '\n' end
    end
  end
  base.file_write(path, table.concat(kept))
  local handle, message = io.open(path, 'a')
  if not handle then fail('state', 'trainer.metrics', 'cannot write: ' .. message) end
  handle:setvbuf('line')
  return setmetatable({ handle = handle, path = path, empty = #kept == 0 }, File)
end

---@param line string without its newline
function File:write(line)
  local ok, message = self.handle:write(line, '\n')
  if not ok then
    fail('state', 'trainer.metrics', ("cannot write '%s': %s"):format(self.path, message))
  end
  self.empty = false
end

function File:close()
  if self.handle then self.handle:close() end
  self.handle = nil
end

return M
