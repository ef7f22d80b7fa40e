--- The log for Lua code: `time | LEVEL | logger | text` lines on stderr.
local base = require 'nnscaler._C.base'

local M = {}

local said = {}

---@class nnscaler.Logger
---@field debug fun(format: string, ...)
---@field info fun(format: string, ...)
---@field warning fun(format: string, ...)
---@field error fun(format: string, ...)
---@field info_once fun(format: string, ...) the first time that this process makes this text
---@field warning_once fun(format: string, ...) the first time that this process makes this text

--- Makes a logger. Its functions take what string.format takes.
---@param name string as 'nnscaler.trainer'
---@return nnscaler.Logger
function M.logger(name)
  local logger = { name = name }
  for _, level in ipairs { 'debug', 'info', 'warning', 'error' } do
    logger[level] = function(text, ...)
      if select('#', ...) > 0 then text = string.format(text, ...) end
      base.log(level, name, text)
    end
  end
  for _, level in ipairs { 'info', 'warning' } do
    logger[level .. '_once'] = function(text, ...)
      if select('#', ...) > 0 then text = string.format(text, ...) end
      local key = name .. '\0' .. text
      if said[key] then return end
      said[key] = true
      base.log(level, name, text)
    end
  end
  return logger
end

--- Sets the least level that is written.
---@param level 'debug'|'info'|'warning'|'error'|'off'
function M.set_level(level) base.log_level(level) end

return M
