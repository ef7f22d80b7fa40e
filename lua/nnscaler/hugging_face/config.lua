--- config.json of a model folder, read with care: every value that counts is checked, and one that
--- asks for what our models do not compute is refused by its name.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'

---@class nnscaler.hugging_face.Config
---@field path string of the file
---@field values table
local Config = {}
Config.__index = Config

local M = {}

local area = 'hugging_face.config'

--- Reads the file.
---@param folder string
---@return nnscaler.hugging_face.Config
function M.read(folder)
  local path = folder .. '/config.json'
  local ok, values = pcall(function() return base.json_decode(base.file_read(path)) end)
  if not ok or type(values) ~= 'table' then
    fail('state', area, ("'%s' is not the configuration of a model%s"):format(path,
      ok and '' or ': ' .. (type(values) == 'table' and values.message or tostring(values))))
  end
  return setmetatable({ path = path, values = values }, Config)
end

function Config:refuse(key, expected)
  local value = self.values[key]
  local shown = type(value) == 'table' and base.json_encode(value) or tostring(value)
  fail('state', area, ("'%s': %s is %s; expected %s"):format(self.path, key, shown, expected))
end

--- An integer of at least 1.
---@param key string
---@param default? integer
---@return integer
function Config:integer(key, default)
  local value = self.values[key]
  if value == nil and default then return default end
  if type(value) ~= 'number' or value < 1 or value % 1 ~= 0 then
    self:refuse(key, 'an integer ≥ 1')
  end
  return value
end

--- A number above 0.
---@param key string
---@param default? number
---@return number
function Config:number(key, default)
  local value = self.values[key]
  if value == nil and default then return default end
  if type(value) ~= 'number' or not (value > 0 and value < math.huge) then
    self:refuse(key, 'a number above 0')
  end
  return value
end

---@param key string
---@param default boolean
---@return boolean
function Config:flag(key, default)
  local value = self.values[key]
  if value == nil then return default end
  if type(value) ~= 'boolean' then self:refuse(key, 'true or false') end
  return value
end

--- Refuses another value than those that our model computes; a missing one is right.
---@param key string
---@param allowed any[]
function Config:only(key, allowed)
  local value = self.values[key]
  if value == nil then return end
  local texts = {}
  for i, choice in ipairs(allowed) do
    if value == choice then return end
    texts[i] = tostring(choice)
  end
  self:refuse(key, (#texts > 0 and table.concat(texts, ' or ') or 'null')
    .. ', which is all that the Lua model computes')
end

return M
