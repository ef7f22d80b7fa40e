--- Parameter groups by name pattern: '*' stands for any text, '?' for one character.
local fail = require 'nnscaler.fail'

local M = {}

local function to_pattern(text)
  text = text:gsub('[%^%$%(%)%%%.%[%]%+%-]', '%%%0')
  return '^' .. text:gsub('%*', '.*'):gsub('%?', '.') .. '$'
end

---Tells whether `text` fits the pattern.
---@param pattern string
---@param text string
---@return boolean
function M.match(pattern, text) return text:find(to_pattern(pattern)) ~= nil end

--- Gives each parameter the number of the first group whose pattern fits its name, else 0.
---@param groups { match: string|string[] }[]
---@param parameters { name: string }[]
---@return table<string, integer>
function M.assign(groups, parameters)
  local group_of = {}
  for _, parameter in ipairs(parameters) do group_of[parameter.name] = 0 end
  for i = #groups, 1, -1 do
    local globs = groups[i].match
    if type(globs) == 'string' then globs = { globs } end
    if type(globs) ~= 'table' or #globs == 0 then
      fail('usage', ('optimizer.args.groups[%d].match'):format(i),
        'missing; expected a name pattern or a list of them')
    end
    for _, text in ipairs(globs) do
      local pattern, hits = to_pattern(text), 0
      for _, parameter in ipairs(parameters) do
        if parameter.name:find(pattern) then
          group_of[parameter.name], hits = i, hits + 1
        end
      end
      if hits == 0 then
        fail('usage', ('optimizer.args.groups[%d].match'):format(i), ("'%s' fits no parameter; the "
          .. "first is '%s'"):format(text, parameters[1] and parameters[1].name or 'none'))
      end
    end
  end
  return group_of
end

return M
