--- Tables that people give to policies: `pas_config`, the places of cuts, entries of lists. What a
--- table may hold is declared as name → rule; anything else is refused with the nearest name.
---
---   { 'integer' | 'number' | 'boolean' | 'text' | 'names' | 'table' | 'any', least =, most =,
---     also =, file = }
---
--- `also` is one more value that a key takes (pipeline_nstages = 'auto'). `file`: the text may be
--- the path of a file, whose content makes another plan (fingerprint.lua).
local core = require 'nnscaler._C.job'
local fail = require 'nnscaler.fail'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local M = {}

---@alias nnscaler.policies.Rules table<string, table>

local articles = { integer = 'an integer', number = 'a number', boolean = 'true or false',
  text = 'a text', names = 'a text or a list of texts', table = 'a table' }

local function expected(rule)
  local text = articles[rule[1]]
  if rule.least and rule.most then
    text = ('%s from %g to %g'):format(text, rule.least, rule.most)
  elseif rule.least then
    text = ('%s of at least %g'):format(text, rule.least)
  end
  return rule.also and ("%s, or '%s'"):format(text, rule.also) or text
end

local function is_texts(list)
  for _, item in ipairs(list) do
    if type(item) ~= 'string' then return false end
  end
  return #list > 0 and #sorted_keys(list) == #list
end

-- Whether a value is what its rule says.
local function fits(value, rule)
  if rule.also ~= nil and value == rule.also then return true end
  local kind = type(value)
  if rule[1] == 'integer' or rule[1] == 'number' then
    return kind == 'number' and (rule[1] == 'number' or value % 1 == 0)
      and value >= (rule.least or -math.huge) and value <= (rule.most or math.huge)
  end
  if rule[1] == 'names' and kind == 'table' then return is_texts(value) end
  if rule[1] == 'names' then return kind == 'string' end
  return rule[1] == 'any' or kind == (rule[1] == 'text' and 'string' or rule[1])
end

local function spell(value)
  if type(value) == 'string' then return ("the text '%s'"):format(value) end
  return type(value) == 'table' and 'a table' or tostring(value)
end

local function list_of(names) return #names > 0 and table.concat(names, ', ') or 'none' end

--- Raises when a table holds a key without a rule, or a value that its rule refuses.
---@param area string of the error
---@param what string what the table is: "policy 'hybrid'"
---@param prefix string of its keys: 'pas_config.'
---@param given any
---@param rules nnscaler.policies.Rules
function M.check(area, what, prefix, given, rules)
  if type(given) ~= 'table' then
    fail('usage', area, ('%s: %s; expected a table with the keys %s'):format(what, spell(given),
      list_of(sorted_keys(rules))))
  end
  local wrong = false
  for key, value in next, given do
    wrong = wrong or not rules[key] or not fits(value, rules[key])
  end
  if not wrong then return end
  for _, key in ipairs(sorted_keys(given)) do
    local rule, names = rules[key], sorted_keys(rules)
    if not rule then
      local near = type(key) == 'string' and core.nearest(key, names)
      fail('usage', area, ("%s has no key '%s%s'; its keys: %s"):format(what, prefix,
        tostring(key), list_of(names)),
        near and ("did you mean '%s%s'?"):format(prefix, near) or nil)
    elseif not fits(given[key], rule) then
      fail('usage', area, ("%s: '%s%s' is %s; expected %s"):format(what, prefix, key,
        spell(given[key]), expected(rule)))
    end
  end
end

-- Keys of pas_config that every policy takes.
local common = { strict = { 'boolean' }, pipeline_nmicros = { 'integer', least = 1 },
  recompute_modules = { 'names' }, offload_modules = { 'names' } }

--- Makes a policy that takes these keys of pas_config, and no others.
---@param rules nnscaler.policies.Rules
---@param policy fun(graph: table, cfg: nnscaler.PolicyConfig)
---@return table callable as the function
function M.policy(rules, policy)
  return setmetatable({ keys = rules, policy = policy }, {
    __call = function(_, graph, cfg) return policy(graph, cfg) end,
  })
end

--- Checks pas_config for a policy. One that declares nothing may take any key.
---@param name string of the policy
---@param policy function|table
---@param config table
function M.check_config(name, policy, config)
  local own = type(policy) == 'table' and policy.keys
  local rules = setmetatable({}, not own and { __index = function() return { 'any' } end } or nil)
  for _, list in ipairs { common, own or {} } do
    for _, key in ipairs(sorted_keys(list)) do rules[key] = list[key] end
  end
  M.check('policies.keys', ("policy '%s'"):format(name), 'pas_config.', config, rules)
end

return M
