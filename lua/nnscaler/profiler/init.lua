--- Measures the machine, and the calls of a job as they run in its steps, for the planner: what
--- `nnscaler profile` does on every rank. The result is a text that src/cost/profile.cpp reads.
local base = require 'nnscaler._C.base'
local calls = require 'nnscaler.profiler.calls'
local comm = require 'nnscaler._C.comm'
local door = require 'nnscaler._C.tensor'
local fail = require 'nnscaler.fail'
local machine = require 'nnscaler.profiler.machine'
local kernels = require 'nnscaler.profiler.products'
local process = require 'nnscaler._C.process'
local products = require 'nnscaler.products'
local ranks = require 'nnscaler.ranks'
local recorder = require 'nnscaler.runtime.profile'
local setup = require 'nnscaler.trainer.setup'
local slots = require 'nnscaler.optim.slots'
local solve = require 'nnscaler._C.solve'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs
local steps = require 'nnscaler.trainer.step'
local trainer = require 'nnscaler.trainer'

local M = {}

local kFormat, kWarm, kMost = 1, 2, 12 -- steps before, and at most

-- Ranks of one host share its memory; links between hosts are not measured.
local function check_hosts()
  local first
  local _, id = process.host()
  for r, text in ipairs(ranks.exchange(id)) do
    first = first or text
    if text ~= first then
      fail('usage', 'profiler.hosts', ('rank %d runs on another host than rank 0; expected ranks '
        .. 'of one host'):format(r - 1), 'describe links between hosts in a file: docs/planner.md')
    end
  end
end

-- Times what the step of the optimizer does beside sums of gradients.
local function watch_update(update)
  local seen = { seconds = 0 }
  for _, part in ipairs { 'scale', 'norm', 'clip', 'update' } do
    local f = update[part]
    update[part] = function(...)
      local start = recorder.now()
      local function finish(...)
        seen.seconds = seen.seconds + recorder.now() - start
        return ...
      end
      return finish(f(...))
    end
  end
  return seen
end

local function bytes_updated(t)
  local bytes = 0
  for _, leaf in ipairs(t.optimizer.slots) do
    bytes = bytes + leaf.data:numel() * slots.width[leaf.data.dtype]
  end
  return math.max(bytes, 1)
end

-- Processor time where one thread does all of a rank, as others on the machine do not lengthen
-- that; else wall time.
local function choose_clock(device)
  local backend = comm.current():backend()
  local alone = (device or 'cpu') == 'cpu' and door.get_num_threads() == 1
    and (backend == 'mpi' or backend == 'local' or ranks.world_size() == 1)
  recorder.clock = alone and base.thread_clock or base.clock
end

-- What a step does together with other ranks beside its calls is priced by links, not measured
-- here.
local function leave_out(t)
  for object, names in next, { [t.engine.states or {}] = { 'ask', 'wait', 'gather' },
    [t.sharing or {}] = { 'over_all' } } do
    for _, name in ipairs(names) do
      if object[name] then object[name] = recorder.left_out(object[name]) end
    end
  end
end

-- All ranks stop together.
local function is_late(late)
  for _, text in ipairs(ranks.exchange(late and 'x' or '')) do
    if text ~= '' then return true end
  end
  return false
end

-- Takes some steps of a job: what its calls and its optimizer's step took, and a whole step.
local function steps_of(t, seconds)
  local program = t.engine:prepared({ setup.first_sample(t) }, true)[1].program
  local watched, update = calls.new(program), watch_update(t.update)
  leave_out(t)
  local start, walls, owns, updates, rests = base.clock(), {}, {}, {}, {}
  local train, began, beside = t.engine.train_step, nil, nil
  t.engine.train_step = function(...)
    began, beside = recorder.now(), recorder.aside
    return train(...)
  end
  for taken = 1, kMost + kWarm do
    watched.open = taken > kWarm
    update.seconds = 0
    local segments = watched.seconds
    local wall = steps.run(t).train_wall
    local own = recorder.now() - began
    if t.span:epoch_ended(t) then t.span:next_epoch(t) end
    if watched.open then
      walls[#walls + 1], updates[#updates + 1] = wall, update.seconds
      owns[#owns + 1] = own + recorder.aside - beside
      rests[#rests + 1] = own - update.seconds - (watched.seconds - segments)
    end
    if is_late(taken >= kWarm + 3 and base.clock() - start >= seconds) then break end
  end
  local step = { optimizer = slots.name(t.args.optimizer),
    seconds = math.max(calls.median(rests), 0),
    seconds_per_byte = calls.median(updates) / bytes_updated(t) }
  local measured = kernels.measure(program.lowered:products(), door.get_num_threads())
  return watched:result(), step, calls.median(walls), calls.median(owns), measured
end

-- The mean over ranks of what was measured on each.
local function joined(own)
  local mine, out = {}, {}
  for _, entry in sorted_pairs(own) do mine[#mine + 1] = entry end
  for _, text in ipairs(ranks.exchange(base.json_encode(mine))) do
    for _, entry in ipairs(base.json_decode(text)) do
      local known = out[entry.call]
      if known then
        known.seconds, known.ranks = known.seconds + entry.seconds, known.ranks + 1
      else
        entry.ranks = 1
        out[entry.call] = entry
      end
    end
  end
  for _, entry in next, out do
    entry.seconds = entry.seconds / entry.ranks
    entry.ranks = nil
  end
  return out
end

-- A list of tables as JSON, one a line.
local function lines(list)
  local out = {}
  for i, entry in ipairs(list) do out[i] = '    ' .. base.json_encode(entry) end
  return #out > 0 and '[\n' .. table.concat(out, ',\n') .. '\n  ]' or '[]'
end

--- The text of a profile.
---@param profile table { machine, figures, links, calls, steps } the last two by name
---@return string
function M.text(profile)
  local found, updates = {}, {}
  for _, entry in sorted_pairs(profile.calls) do found[#found + 1] = entry end
  for _, entry in sorted_pairs(profile.steps) do updates[#updates + 1] = entry end
  return ('{\n  "kind": "nnscaler.profile", "format": %d, "version": %s, "made": %s,\n'
    .. '  "machine": %s,\n  "figures": %s,\n  "links": %s,\n  "steps": %s,\n  "calls": %s\n}\n')
    :format(kFormat, base.json_encode(base.version), base.json_encode(profile.made),
      base.json_encode(profile.machine), base.json_encode(profile.figures), lines(profile.links),
      lines(updates), lines(found))
end

--- What a file holds of the same machine under the same version; nothing where it does not.
---@param path string
---@param identity table as machine.identity gives it
---@return table<string, table> calls, table<string, table> steps
function M.known(path, identity)
  local by_call, by_optimizer = {}, {}
  if not pcall(solve.hardware, path) then return by_call, by_optimizer end
  local old = base.json_decode(base.file_read(path, 'profiler'))
  local same = old.version == base.version
  for key, value in sorted_pairs(identity) do same = same and old.machine[key] == value end
  if not same then return by_call, by_optimizer end
  for _, entry in ipairs(old.calls) do by_call[entry.call] = entry end
  for _, entry in ipairs(old.steps) do by_optimizer[entry.optimizer] = entry end
  return by_call, by_optimizer
end

--- Measures; a collective of all ranks.
---@param job nnscaler.Job|nil whose calls are measured too
---@param path string file that gets the profile; what it holds of this machine stays in it
---@param seconds number that steps of the job may take
---@return string report
function M.run(job, path, seconds)
  local t
  if job then
    recorder.enable() -- before any program is loaded
    t = trainer.new(job)
    setup.run(t)
  else
    ranks.join {}
    door.set_num_threads(1)
  end
  check_hosts()
  choose_clock(job and job.device)
  local profile = { machine = machine.identity(door.get_num_threads()),
    made = os.date '!%Y-%m-%dT%H:%M:%SZ', figures = machine.device(), links = machine.links() }
  profile.figures.links = machine.fit(profile.links)
  profile.calls, profile.steps = M.known(path, profile.machine)
  local count, own_count, wall, busy, measured = 0, 0, nil, nil, nil
  if t then
    local own, step
    own, step, wall, busy, measured = steps_of(t, seconds)
    for _ in next, own do own_count = own_count + 1 end
    for name, entry in next, joined(own) do
      profile.calls[name] = entry
      count = count + 1
    end
    profile.steps[step.optimizer] = step
  end
  if ranks.rank() == 0 then
    local folder = path:match '^(.*)/[^/]*$'
    if folder then base.make_folder(folder) end
    base.file_write(path, M.text(profile), 'profiler.write')
    if measured and #measured > 0 then
      products.write(products.path(path), products.machine(), measured)
    end
  end
  local counts = {}
  for r, text in ipairs(ranks.exchange(tostring(own_count))) do
    counts[r] = ('device %d finished profiling %s calls\n'):format(r - 1, text)
  end
  local report = t and table.concat(counts) or ''
  report = report .. ('%s, %d rank(s) of %d thread(s): %.3g GFLOP/s of float32, %.3g GB/s of '
    .. 'memory each'):format(profile.machine.processor, profile.machine.ranks,
    profile.machine.threads, profile.figures.flops.float32 / 1e9,
    profile.figures.memory_bandwidth / 1e9)
  if t then
    report = report .. ('; %d distinct calls measured, a step takes %.4g s'):format(count, wall)
    if recorder.clock == base.thread_clock then
      report = report .. (', %.4g s of the processor'):format(busy)
    end
    local tiled = 0
    for _, entry in ipairs(measured) do tiled = tiled + (entry.kernel == 'tiles' and 1 or 0) end
    report = report .. ('\n%d of %d matrix products are faster in tiles'):format(tiled, #measured)
  end
  return report .. '\nprofile written to ' .. path
end

return M
