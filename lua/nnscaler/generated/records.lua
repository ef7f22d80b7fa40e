--- Records beside generated programs: what a start from written files takes instead of making it,
--- and from what it was made. `graph.<shapes>.json` holds a traced graph, `plan.json` the plan of
--- the policy, `gencode<rank>.json` a rank's Program. One that does not serve gives its reason.
local base = require 'nnscaler._C.base'
local files = require 'nnscaler.generated.files'
local graph_of = require 'nnscaler._C.graph'
local log = require('nnscaler.log').logger 'nnscaler.codegen'
local lower = require 'nnscaler._C.lower'
local plan_of = require 'nnscaler._C.plan'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local M = {}

---@class nnscaler.Record a file to be written
---@field path string
---@field text string
---@field rank integer who writes it

---@class nnscaler.MadeFrom what a plan or a program was made from
---@field graph string hash of its graph
---@field shapes string what the graph is specialised to
---@field settings string
---@field policy? string of a plan: its fingerprint
---@field micro_batches? integer of a plan
---@field plan? string of a program: hash of its plan, '' without one
---@field first? string of a program: hash of the graph in whose homes weights rest, '' without one
---@field embedded? boolean of a program
---@field device? string of a program

local kFormat = 3

local function short(path) return path:match '[^/]+$' end

-- The text of a record: a line of JSON with what it was made from and the hash of its content,
-- which follows as it is.
local function written(kind, made_from, content)
  local record = { kind = kind, format = kFormat, version = base.version, build = base.build,
    hash = base.hash(content) }
  for key, value in sorted_pairs(made_from) do record[key] = value end
  return base.json_encode(record) .. '\n' .. content
end

-- A record, as far as it is whole, of this build and of the kind; else nil and why, or nil alone
-- where there is none.
local function read(path, kind)
  if base.file_exists(path) ~= 'file' then return nil end
  local ok, record = pcall(function()
    local head, content = base.file_read(path, 'codegen.record'):match '^([^\n]*)\n(.*)$'
    local record = base.json_decode(head)
    record.content = content
    return record
  end)
  if not ok or record.kind ~= kind or record.hash ~= base.hash(record.content) then
    return nil, 'file edited: ' .. short(path)
  end
  if record.format ~= kFormat or record.version ~= base.version then
    return nil, ('version changed: %s in the file, %s now'):format(tostring(record.version),
      base.version)
  end
  if record.build ~= base.build then return nil, 'version changed: another build of nnscaler' end
  return record
end

local function graph_path(place, shapes)
  return ('%s/graph.%s.json'):format(files.folder(place), base.hash(shapes):sub(1, 8))
end

-- Why a model of before is another one, by comparing its graph with that of now.
local function model_changed(place, shapes, hash, graph)
  local old = read(graph_path(place, shapes), 'nnscaler.traced')
  local ok, before = pcall(function() return old and graph_of.from_json(old.content) end)
  local where = ok and before and before:hash() == hash and before:difference(graph)
  return where and 'model changed: ' .. where or 'model changed'
end

-- Why a record was made from something else than what is there now; nil if it was not.
local function changed(record, made_from, place, graph)
  local reasons = {}
  local function add(...) reasons[#reasons + 1] = string.format(...) end
  if record.shapes ~= made_from.shapes then
    add('shapes changed: %s in the file, %s now', tostring(record.shapes), made_from.shapes)
  elseif record.graph ~= made_from.graph then
    reasons[#reasons + 1] = model_changed(place, record.shapes, record.graph, graph)
  end
  if record.settings ~= made_from.settings then
    local old = type(record.settings) == 'string' and record.settings or ''
    local ok, list = pcall(files.changed_settings, old, made_from.settings)
    for _, c in ipairs(ok and list or {}) do
      add('settings changed: %s (%s in the file, %s now)', c.key, c.old, c.new)
    end
  end
  local names = { policy = 'policy changed', plan = 'plan changed',
    micro_batches = 'settings changed: micro-batches of a step',
    first = 'model changed: its first graph', device = 'settings changed: device',
    embedded = 'settings changed: use_end2end' }
  for key, text in sorted_pairs(names) do
    if record[key] ~= made_from[key] then reasons[#reasons + 1] = text end
  end
  local same = record.graph == made_from.graph and record.settings == made_from.settings
  return (reasons[1] or not same) and table.concat(reasons, '; ') or nil
end

-- Whether the way of reuse lets anything be taken from before.
local function reuses(place)
  return files.folder(place) and place.reuse ~= 'override' and place.reuse ~= 'graph'
end

--- The graph of arguments: with gen_reuse=graph that of an earlier run for the same settings and
--- shapes, else the one that `make` traces.
---@param place nnscaler.FilePlace
---@param shapes string what the graph is specialised to
---@param make fun(known?: string): userdata gets the hash of the graph of before
---@return userdata graph
---@return nnscaler.Record|nil record to be written
function M.graph(place, shapes, make)
  if not files.folder(place) then return make() end
  local path = graph_path(place, shapes)
  local old, why = read(path, 'nnscaler.traced')
  if place.reuse == 'graph' and old then
    local other = old.shapes ~= shapes and 'shapes changed'
      or old.settings ~= place.settings and 'settings changed'
    if not other then
      log.warning('Graph of %s reused: changes of the model since are not seen', path)
      return graph_of.from_json(old.content)
    end
    why = other
  end
  if place.reuse == 'graph' and why then log.info('%s: traced anew: %s', path, why) end
  local graph = make(old and old.graph)
  local made_from = { graph = graph:hash(), shapes = shapes, settings = place.settings }
  if old and not changed(old, made_from, place, graph) then return graph end
  local text = written('nnscaler.traced', made_from, graph:json())
  return graph, { path = path, text = text, rank = place.rank }
end

local function plan_path(place) return files.folder(place) .. '/plan.json' end

--- The plan that an earlier run made from the same; else nil and why not.
---@param place nnscaler.FilePlace
---@param made_from nnscaler.MadeFrom
---@param graph userdata
---@return userdata|nil plan
---@return string|nil reason
function M.plan(place, made_from, graph)
  if not reuses(place) then return nil end
  local old, why = read(plan_path(place), 'nnscaler.planned')
  if not old then return nil, why end
  why = changed(old, made_from, place, graph)
  if why then return nil, why end
  local ok, plan = pcall(function()
    local found = plan_of.from_json(old.content)
    found:match(graph)
    return found
  end)
  if not ok then return nil, 'file edited: plan.json: ' .. tostring(plan) end
  return plan
end

--- The record of a plan.
---@param place nnscaler.FilePlace
---@param made_from nnscaler.MadeFrom
---@param plan userdata
---@return nnscaler.Record|nil
function M.of_plan(place, made_from, plan)
  if not files.folder(place) then return nil end
  return { path = plan_path(place), text = written('nnscaler.planned', made_from, plan:json()),
    rank = place.rank }
end

--- A rank's program and its file as an earlier run wrote them from the same; else nil and why not.
---@param place nnscaler.FilePlace
---@param made_from nnscaler.MadeFrom
---@param rank integer
---@param graph userdata
---@return nnscaler.Generated|nil
---@return string|nil reason
function M.program(place, made_from, rank, graph)
  if not reuses(place) then return nil end
  local path = files.path(place, rank, made_from.graph)
  if not base.file_exists(path) then return nil end
  local text = base.file_read(path, 'codegen.read')
  local key, edited, settings = lower.read_header(text, path)
  local beside = path:gsub('%.lua$', '.json')
  local old, why = read(beside, 'nnscaler.lowered')
  if not old then return nil, why or short(beside) .. ' is missing' end
  why = changed(old, made_from, place, graph)
  if why then return nil, why end
  local ok, program = pcall(lower.from_json, old.content)
  if not ok then return nil, ('file edited: %s: %s'):format(short(beside), tostring(program)) end
  if key ~= program:key() or settings ~= made_from.settings then
    return nil, ('file edited: %s and %s are of two programs'):format(short(path), short(beside))
  end
  return { program = program, json = old.content, kept = true,
    file = files.there(path, text, edited) }
end

--- The record of a rank's program.
---@param path string of the program's file
---@param made_from nnscaler.MadeFrom
---@param json string of the program
---@param rank integer
---@return nnscaler.Record|nil nil where it is there
function M.of_program(path, made_from, json, rank)
  local beside = path:gsub('%.lua$', '.json')
  local text = written('nnscaler.lowered', made_from, json)
  local there = base.file_exists(beside) and base.file_read(beside, 'codegen.record')
  if there == text then return nil end
  return { path = beside, text = text, rank = rank }
end

return M
