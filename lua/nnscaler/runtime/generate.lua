--- Programs of all ranks of a plan from one process: what `nnscaler compile` does, and rank 0 for
--- the others of a run.
local base = require 'nnscaler._C.base'
local files = require 'nnscaler.runtime.files'
local first = require 'nnscaler.runtime.first'
local log = require('nnscaler.log').logger 'nnscaler.program'
local lower = require 'nnscaler._C.lower'

local M = {}

--- Says choices and fallbacks of a program, each once a run.
---@param program nnscaler.Program
function M.tell(program)
  for _, text in ipairs(program:notes()) do log.info_once('%s', text) end
  for _, text in ipairs(program:warnings()) do log.warning_once('%s', text) end
  for _, call in ipairs(program:fallbacks()) do
    log.warning_once('%s in %s at %s has no derivative rule: it runs again under autograd in '
      .. 'backward', call.op, call.module == '' and 'the model' or call.module, call.place)
  end
end

-- Programs of more ranks are not kept, so they are not checked against each other.
local kMostChecked = 64

--- Checks the programs of all ranks of a plan against each other; returns whether it did.
---@param plan userdata
---@param program fun(rank: integer): nnscaler.Program
---@return boolean
function M.check(plan, program)
  local ranks, programs = plan:info().runtime_ngpus, {}
  if ranks > kMostChecked then return false end
  for rank = 0, ranks - 1 do programs[rank + 1] = program(rank) end
  lower.check_ranks(programs, plan)
  return true
end

---@class nnscaler.GenerateOpts : nnscaler.FileOpts
---@field device string
---@field strategy? string broadcast_strategy
---@field embedded? boolean the model is a module inside a hand-written one
---@field set_mb? number the most that a set of gradients takes which ranks sum
---@field first_graph? userdata the first one under the plan, in whose homes weights rest

--- Lowers a graph under a plan for its ranks, checks their programs against each other and writes
--- their files; `visit` sees each program.
---@param graph userdata
---@param plan userdata|nil nil: one device
---@param world { plan_ngpus: integer, runtime_ngpus: integer }
---@param opts nnscaler.GenerateOpts
---@param visit? fun(program: nnscaler.Program, rank: integer)
---@param only? integer one rank; all of them unless told
---@return nnscaler.ProgramFile[] in order of ranks
function M.all(graph, plan, world, opts, visit, only)
  local made = {}
  local function write(rank)
    local place = { device = opts.device, plan = plan, rank = rank, embedded = opts.embedded,
      set_mb = opts.set_mb }
    if opts.first_graph then place.first = lower.lower(opts.first_graph, place) end
    local program = lower.lower(graph, place)
    if visit then visit(program, rank) end
    made[#made + 1] = files.choose(program, opts, rank)
    return program
  end
  if only then
    write(only)
  elseif not plan or not M.check(plan, write) then
    for rank = 0, world.runtime_ngpus - 1 do write(rank) end
  end
  files.commit(made)
  return made
end

--- This rank's file of a program that rank 0 generates for all.
---@param shared nnscaler.Sharing
---@param graph userdata
---@param program nnscaler.Program of this rank
---@param opts nnscaler.GenerateOpts
---@return nnscaler.ProgramFile
function M.shared(shared, graph, program, opts)
  local mine
  local kept = opts.folder and opts.folder ~= ''
  local answer = first.run(shared.everybody, shared.rank, function(beat)
    local made = M.all(graph, shared.plan, shared, opts, beat)
    mine = made[1]
    for _, file in ipairs(made) do mine.edited = mine.edited or file.edited end
    if opts.strategy == 'none' and kept then return '[]' end
    local texts = {}
    for i, file in ipairs(made) do texts[i] = file.text end
    return base.json_encode(texts)
  end, shared.beat_s)
  if mine then return mine end
  if opts.strategy == 'none' and kept then return files.written(program, opts, shared.rank) end
  mine = files.received(program, opts, shared.rank, base.json_decode(answer)[shared.rank + 1])
  files.commit { mine }
  return mine
end

return M
