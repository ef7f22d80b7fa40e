--- What pas_config says under every policy of modules and memory: recompute_modules run again in
--- backward instead of keeping what they make, each a group of its own in each stage that has calls
--- of it; what offload_modules make waits for backward in memory of the host.
local fail = require 'nnscaler.fail'
local glob = require 'nnscaler.optim.glob'
local modules = require 'nnscaler.policies.module'
local nearest = require('nnscaler._C.job').nearest

local M = {}

local kRoot = 'ROOT' -- the whole model

-- 'a, b' and { 'a', 'b' } are one thing.
local function list_of(given)
  if type(given) == 'table' then return given end
  local names = {}
  for name in given:gmatch '[^,]+' do names[#names + 1] = name:match '^%s*(.-)%s*$' end
  return names
end

local function refuse_unknown(key, name, paths)
  local near = nearest(name, paths)
  fail('usage', 'policies.' .. key:match '^%a+',
    ("pas_config.%s: no module that makes calls matches '%s'"):format(key, name),
    near and ("did you mean '%s'?"):format(near)
      or ("expected a path like '%s', a pattern with *, or %s"):format(paths[1] or kRoot, kRoot))
end

-- Paths that the names fit, outermost ones alone: what lies below is part of them.
local function chosen(graph, key, names)
  local paths, fits = graph:paths(), {}
  for _, name in ipairs(names) do
    local any = name == kRoot
    if any then fits[''] = true end
    for _, path in ipairs(paths) do
      if glob.match(name, path) then any, fits[path] = true, true end
    end
    if not any then refuse_unknown(key, name, paths) end
  end
  if fits[''] then return { '' } end
  local list = {}
  for _, path in ipairs(paths) do
    local inner = false
    for _, other in ipairs(paths) do
      inner = inner or fits[other] and other ~= path and modules.holds(other, path)
    end
    if fits[path] and not inner then list[#list + 1] = path end
  end
  return list
end

--- Does what pas_config asks for; stages are to be known by now.
---@param graph table the policy's graph
---@param config { recompute_modules?: string|string[], offload_modules?: string|string[] } paths,
---  or patterns with *; a text lists them with commas
function M.apply(graph, config)
  local function paths_of(key)
    return config[key] and chosen(graph, key, list_of(config[key])) or {}
  end
  for _, path in ipairs(paths_of 'offload_modules') do graph:offload(graph:module(path)) end
  for _, path in ipairs(paths_of 'recompute_modules') do
    local stages, order = {}, {}
    for _, node in ipairs(graph:module(path):nodes()) do
      local stage = graph:stage_of(node)
      if not stages[stage] then
        stages[stage], order[#order + 1] = {}, stage
      end
      table.insert(stages[stage], node)
    end
    for _, stage in ipairs(order) do graph:recompute(stages[stage]) end
  end
end

return M
