--- A file of one line a step that a resumed run goes on with: lines after the resumed step are
--- dropped, also half a line that a killed run left.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'

local M = {}

---@class nnscaler.loggers.File
---@field lines string[] those of an existing file that stayed
---@field regular boolean whether lines can be changed: it is neither a device nor a pipe
local File = {}
File.__index = File

local function refuse(path, message)
  fail('state', 'trainer.metrics', ("cannot write '%s': %s"):format(path,
    (message or 'unknown reason'):gsub('^' .. path:gsub('%p', '%%%0') .. ': ', '')))
end

local function append_to(path)
  local handle, message = io.open(path, 'a')
  if not handle then refuse(path, message) end
  return handle
end

local function kept_lines(path, keep)
  local lines = {}
  if keep and base.file_exists(path) == 'file' then
    for line in base.file_read(path):gmatch('([^\n]*)\n') do
      if keep(line) then lines[#lines + 1] = line end
    end
  end
  return lines
end

local function joined(lines) return #lines > 0 and table.concat(lines, '\n') .. '\n' or '' end

--- Opens the file.
---@param path string
---@param keep fun(line: string): boolean|nil which lines of an existing file stay; nil: none
---@return nnscaler.loggers.File
function M.open(path, keep)
  local folder = path:match('^(.*)/[^/]*$')
  if folder and folder ~= '' then base.make_folder(folder) end
  local lines = kept_lines(path, keep)
  base.file_write(path, joined(lines), 'trainer.metrics')
  return setmetatable({ handle = append_to(path), path = path, lines = lines,
    regular = base.file_exists(path) == 'file' }, File)
end

--- Writes a line. The system has it when this returns: a full disk is an error of this line.
---@param line string without its newline
function File:write(line)
  local ok, message = self.handle:write(line, '\n')
  if ok then ok, message = self.handle:flush() end
  if not ok then refuse(self.path, message) end
end
-- Compiled by the JIT, a flush that fails runs once more in the interpreter: by then C's buffer is
-- empty, and all seems well.
jit.off(File.write)

--- Changes every line that was written.
---@param change fun(line: string): string
function File:change(change)
  self:close()
  local lines = kept_lines(self.path, function() return true end)
  for i, line in ipairs(lines) do lines[i] = change(line) end
  base.file_write(self.path, joined(lines), 'trainer.metrics')
  self.handle = append_to(self.path)
end

function File:close()
  local handle = self.handle
  self.handle = nil
  if not handle then return end
  local ok, message = handle:close()
  if not ok then refuse(self.path, message) end
end

return M
