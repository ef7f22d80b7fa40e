--- The one way from a model to its programs: source → graph → plan → Program of a rank → file.
--- Runs, `compile`, `plan`, `verify` and `parallelize` all go it; they differ in how far, and for
--- which ranks. A start from written files traces and takes the rest from there.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local files = require 'nnscaler.generated.files'
local fingerprint = require 'nnscaler.policies.fingerprint'
local graphs = require 'nnscaler._C.graph'
local log = require('nnscaler.log').logger 'nnscaler.program'
local lower = require 'nnscaler._C.lower'
local optim = require 'nnscaler.optim'
local plans = require 'nnscaler._C.plan'
local policies = require 'nnscaler.policies'
local records = require 'nnscaler.generated.records'

local M = {}

---@class nnscaler.Pipeline
---@field source nnscaler.Source
---@field options nnscaler.Options
---@field plan userdata|nil nnscaler.Plan, from the first training graph on; nil: one whole device
---@field sights? boolean whether somebody wants to know what slots hold (`seen`)
---@field notes (string|fun():string)[]|nil what the policy tells of its search, where it ran and
---  searched; a function is called where it is wanted
---@field first_graph userdata|nil the graph that the plan was made for: weights rest in its homes
local Pipeline = {}
Pipeline.__index = Pipeline

---@param source nnscaler.Source
---@param options nnscaler.Options
---@param rank? integer of this process, 0 unless told
---@return nnscaler.Pipeline
function M.new(source, options, rank)
  return setmetatable({
    source = source, options = options, rank = rank or 0,
    written = {}, -- modes whose first specialisation has its file
    shapes = {}, -- by hash of a graph: what it is specialised to
    records = {}, -- to be written with the next files
    traces = 0, policies = 0, -- how often the model was traced, and the policy ran
  }, Pipeline)
end

-- How the files of the next specialisation of a mode are kept.
function Pipeline:place(mode)
  local o = self.options
  return { folder = o.folder, reuse = o.reuse, mode = mode, settings = o.settings,
    model = (o.name or self.source.name) .. (o.instance_name and '.' .. o.instance_name or ''),
    first = not self.written[mode], rank = self.rank }
end

local function mode_of(graph) return graph:training() and 'training' or 'evaluation' end

--- Logs the notes, the warnings and the operators without a derivative rule of a program, each once
--- per run.
---@param program nnscaler.Program
local function tell(program)
  for _, text in ipairs(program:notes()) do log.info_once('%s', text) end
  for _, text in ipairs(program:warnings()) do log.warning_once('%s', text) end
  for _, call in ipairs(program:fallbacks()) do
    log.warning_once('%s in %s at %s has no derivative rule: it runs again under autograd in '
      .. 'backward', call.op, call.module == '' and 'the model' or call.module, call.place)
  end
end

--- Source → graph, for arguments of forward: traced, or with gen_reuse=graph one of before.
---@param args table `n` counts them
---@param training boolean
---@return userdata graph
function Pipeline:graph(args, training)
  return self:obtain_graph(self.source:key(args, training), training, function(known)
    return self.source:graph(args, training, known)
  end)
end

--- The graph of a specialisation.
---@param shapes string what it is specialised to
---@param training boolean
---@param make fun(known?: string): userdata traces; `known` as trace takes it
---@param shared? nnscaler.Sharing of ranks that all make this specialisation at one time
---@return userdata graph
function Pipeline:obtain_graph(shapes, training, make, shared)
  local place = self:place(training and 'training' or 'evaluation')
  local graph
  local function obtain()
    local record
    graph, record = records.graph(place, shapes, function(known)
      self.traces = self.traces + 1
      return make(known)
    end)
    table.insert(self.records, record)
    return graph:json()
  end
  if shared and place.reuse == 'graph' then
    local text = shared:of_rank_zero(obtain)
    graph = graph or graphs.from_json(text)
  else
    obtain()
  end
  self.shapes[graph:hash()] = shapes
  return graph
end

--- Graph → plan: that of written files, or of the policy, which runs on the first training graph;
--- later graphs go by the same plan.
---@param graph userdata
---@param beat? fun() called now and then
---@return userdata|nil plan nil: one device, all of it whole
function Pipeline:make_plan(graph, beat)
  local o = self.options
  if self.plan or o.runtime_ngpus == 1 and o.whole then return self.plan end
  local plan, why, made_from, place = self:plan_of_before(graph, self.shapes[graph:hash()])
  if plan then
    self:use_plan(graph, plan)
    return plan
  end
  if why then log.info('The policy runs: %s', why) end
  self:use_plan(graph, self:ask_policy(graph, beat))
  if made_from.policy then
    table.insert(self.records, records.of_plan(place, made_from, self.plan))
  end
  return self.plan
end

--- The plan of written files, where it was made from the same.
---@param graph userdata
---@param shapes string what the graph is specialised to
---@return userdata|nil plan
---@return string|nil reason why not, where there are files
---@return nnscaler.MadeFrom
---@return nnscaler.FilePlace
function Pipeline:plan_of_before(graph, shapes)
  local o, place = self.options, self:place 'training'
  local made_from = { graph = graph:hash(), shapes = shapes, settings = o.settings,
    micro_batches = o.micro_batches, undivided = self:undivided(graph) }
  local plan, why
  made_from.policy, why = fingerprint.of(o.policy, o.pas_config)
  if made_from.policy then
    plan, why = records.plan(place, made_from, graph)
  else
    why = 'it holds ' .. why
  end
  return plan, why, made_from, place
end

--- What the policy says of a graph.
---@param graph userdata
---@param beat? fun() called now and then
---@return userdata plan
function Pipeline:ask_policy(graph, beat)
  self.policies, self.notes = self.policies + 1, nil
  return policies.run(graph, self.options.policy, self:policy_config(graph, beat))
end

-- Names of weights whose slots one rank keeps undivided.
function Pipeline:undivided(graph)
  local o = self.options
  if o.runtime_ngpus == 1 then return {} end
  if o.zero.undivided then
    local names = {}
    for i, parameter in ipairs(graph:parameters()) do names[i] = parameter.name end
    return names
  end
  return o.optimizer and optim.undivided(o.optimizer, graph:parameters()) or {}
end

--- What a policy is handed.
---@param graph userdata
---@param beat? fun()
---@return nnscaler.PolicyConfig
function Pipeline:policy_config(graph, beat)
  local o = self.options
  return { plan_ngpus = o.plan_ngpus, runtime_ngpus = o.runtime_ngpus, beat = beat,
    pas_config = o.pas_config, micro_batches = o.micro_batches, device = o.device,
    hardware = o.hardware, optimizer = o.optimizer, bucket_cap_mb = o.bucket_cap_mb,
    zero = o.zero, embedded = o.embedded, undivided = self:undivided(graph),
    note = function(text)
      self.notes = self.notes or {}
      table.insert(self.notes, text)
    end }
end

--- What a step of the plan costs on hardware; of many equal layers few are lowered.
---@param graph userdata
---@param plan userdata of the graph
---@param settings nnscaler.StepSettings
---@return nnscaler.StepCost
function Pipeline:simulate(graph, plan, settings)
  return lower.simulate(graph, self:lowering(plan), settings)
end

--- What `simulate` says, by the programs of all ranks, with where time and memory go.
---@param graph userdata
---@param plan userdata of the graph
---@param settings nnscaler.StepSettings
---@return nnscaler.StepAccount
function Pipeline:account(graph, plan, settings)
  return self:skeleton(graph, plan):account(plan, settings)
end

--- Takes the plan that another rank has made for this graph.
---@param graph userdata
---@param plan userdata|string the plan, or its JSON
function Pipeline:use_plan(graph, plan)
  self.plan = type(plan) == 'string' and plans.from_json(plan) or plan
  self.first_graph = graph
end

-- What programs under a plan are lowered with.
function Pipeline:lowering(plan, step, first)
  local o = self.options
  return { device = o.device, plan = plan, first = first, step = step, set_mb = o.bucket_cap_mb,
    embedded = o.embedded, sights = self.sights, products = o.products }
end

-- The programs of all ranks of a graph; the last one and that of the first graph are kept.
function Pipeline:skeleton(graph, plan)
  local known = self.last
  if known and known.graph == graph and known.plan == plan then return known.skeleton end
  local function make(of, under, step, first)
    return lower.skeleton(of, self:lowering(under, step, first))
  end
  local skeleton
  if not plan then
    skeleton = make(graph, nil, not self.written.training)
  elseif graph == self.first_graph then
    skeleton = make(graph, plan, true)
    self.homes = skeleton
  else
    self.homes = self.homes or make(self.first_graph, self.plan, true)
    skeleton = make(graph, plan, false, self.homes)
  end
  self.last = { graph = graph, plan = plan, skeleton = skeleton }
  return skeleton
end

--- What the slots of a rank hold of a graph, in runs that are looked at.
---@param graph userdata
---@param plan userdata|nil of the graph
---@return nnscaler.Sight[]
---@return userdata graph whose values they number
function Pipeline:seen(graph, plan)
  local skeleton = self:skeleton(graph, plan)
  return skeleton:seen(self.rank), skeleton:graph()
end

--- Plan → Program of a rank.
---@param graph userdata
---@param plan userdata|nil of the graph
---@param rank integer
---@return nnscaler.Program
function Pipeline:program(graph, plan, rank)
  local program = self:skeleton(graph, plan):project(rank)
  tell(program)
  return program
end

--- Checks the programs of all ranks: of each class, and those of up to 64 ranks against each other.
---@param graph userdata
---@param plan userdata of the graph
---@return boolean compared whether they were checked against each other
---@return integer[][] classes ranks that share a lowering
function Pipeline:check(graph, plan)
  local skeleton = self:skeleton(graph, plan)
  return skeleton:check(), skeleton:classes()
end

---@class nnscaler.Generated a rank's program and the text that runs
---@field program nnscaler.Program
---@field json string|nil of the program
---@field file nnscaler.ProgramFile
---@field kept boolean|nil whether it was on disk

-- What a program of the graph is made from.
function Pipeline:made_from(graph, plan)
  local o, hash = self.options, graph:hash()
  return { graph = hash, shapes = self.shapes[hash], settings = o.settings, embedded = o.embedded,
    device = o.device, plan = plan and plan:hash() or '',
    first = plan and self.first_graph ~= graph and self.first_graph:hash() or '' }
end

--- This rank's program of written files; nil, and says why in the log, where it is to be made.
---@param graph userdata
---@param plan userdata|nil of the graph
---@return nnscaler.Generated|nil
function Pipeline:found(graph, plan)
  local mode = mode_of(graph)
  local made = self:read(graph, self:place(mode), self:made_from(graph, plan), self.rank)
  if not made then return nil end
  self:commit {}
  self.written[mode] = true
  return made
end

function Pipeline:read(graph, place, made_from, rank)
  local kept, why = records.program(place, made_from, rank, graph)
  if kept then tell(kept.program) end
  if why then log.info('%s: lowered anew: %s', files.path(place, rank, made_from.graph), why) end
  return kept
end

-- Makes a rank's program and chooses its text.
function Pipeline:make(graph, plan, place, made_from, rank)
  local program = self:program(graph, plan, rank)
  local made = { program = program, file = files.choose(program, place, rank) }
  if made.file.path then
    made.json = program:json()
    table.insert(self.records, records.of_program(made.file.path, made_from, made.json, rank))
  end
  return made
end

-- Writes files, and all records that wait for them.
function Pipeline:commit(list)
  local waiting = self.records
  self.records = {}
  files.commit(list, waiting)
end

--- Program → file, for all ranks: checks the programs against each other, unless they are those of
--- before, and writes all files, or none.
---@param graph userdata
---@param visit? fun(program: nnscaler.Program, rank: integer, made: nnscaler.Generated)
---@param only? integer one rank; all of them unless told
---@return nnscaler.ProgramFile[] in order of ranks
function Pipeline:write_all(graph, visit, only)
  local mode, ranks = mode_of(graph), self.options.runtime_ngpus
  local place, made_from = self:place(mode), self:made_from(graph, self.plan)
  local list, fresh = {}, false
  for rank = only or 0, only or ranks - 1 do
    local made = self:read(graph, place, made_from, rank)
      or self:make(graph, self.plan, place, made_from, rank)
    if visit then visit(made.program, rank, made) end
    list[#list + 1], fresh = made.file, fresh or not made.kept
  end
  if fresh and self.plan and not only then self:check(graph, self.plan) end
  self:commit(list)
  self.written[mode] = true
  return list
end

-- This rank's program of those that rank 0 makes for all.
function Pipeline:generate_shared(graph, shared)
  local rank, mine, sent = self.rank, nil, {}
  local place, made_from = self:place(mode_of(graph)), self:made_from(graph, self.plan)
  local on_disk = self.options.strategy == 'none' and files.folder(place)
  local answer = shared:of_rank_zero(function(beat)
    self:write_all(graph, function(program, r, made)
      mine = mine or made
      if not on_disk then
        sent[r + 1] = { text = made.file.text, program = made.json or program:json(),
          edited = made.file.edited }
      end
      beat()
    end)
    return base.json_encode(sent)
  end)
  if mine then return mine end
  if on_disk then
    local path = files.expect(place, rank, made_from.graph)
    local there, why = records.program(place, made_from, rank, graph)
    if there then return there end
    fail('state', 'codegen.missing', ('rank %d cannot use %s, which rank 0 wrote: %s'):format(rank,
      path, why), 'broadcast_strategy=none asks for a disk that all ranks share')
  end
  sent = base.json_decode(answer)[rank + 1]
  mine = { program = lower.from_json(sent.program) }
  mine.file = files.received(mine.program, place, rank, sent.text)
  mine.file.edited = sent.edited
  if mine.file.path then
    table.insert(self.records, records.of_program(mine.file.path, made_from, sent.program, rank))
  end
  tell(mine.program)
  self:commit { mine.file }
  return mine
end

--- Program → file, of this rank.
---@param graph userdata
---@param plan userdata|nil of the graph
---@param shared? nnscaler.Sharing of ranks that all make this specialisation at one time
---@return nnscaler.Generated
function Pipeline:generate(graph, plan, shared)
  local mode = mode_of(graph)
  local made
  if shared then
    made = self:generate_shared(graph, shared)
  else
    made = self:make(graph, plan, self:place(mode), self:made_from(graph, plan), self.rank)
    self:commit { made.file }
  end
  self.written[mode] = true
  return made
end

--- Says what all of it took, for who looks.
---@param mode string
function Pipeline:count(mode)
  log.debug('Program of %s: %d traces, %d policies, %d lowerings, %d files written so far', mode,
    self.traces, self.policies, lower.count(), files.count())
end

return M
