--- After the first steps of a run: what the planner predicted of a step, beside what was measured.
--- Times are medians; waiting is all that a rank spends in communication, its own and that of
--- others; memory is that of tensors.
local autodist = require 'nnscaler.policies.autodist'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local explain = require 'nnscaler.explain'
local format = require 'nnscaler.format'
local groups = require 'nnscaler.runtime.groups'
local ranks = require 'nnscaler.ranks'
local solve = require 'nnscaler._C.solve'
local units = require 'nnscaler.units'

local M = {}

local kSteps, kFirst = 20, 3 -- steps until then; the first that counts

---@class nnscaler.trainer.Prediction
local Prediction = {}
Prediction.__index = Prediction

--- Watches a run; nil where it has no program of the whole model, or runs on a GPU that nobody
--- names (pas_config.hardware).
---@param t nnscaler.Trainer
---@return nnscaler.trainer.Prediction|nil
function M.new(t)
  local named = t.hardware
  if t.engine_name ~= 'program' then return nil end
  if not named and (t.args.device or 'cpu') ~= 'cpu' then return nil end
  return setmetatable({ first = t.step, walls = {}, waits = {}, named = named }, Prediction)
end

local function median(list)
  table.sort(list)
  return list[math.floor((#list + 1) / 2)]
end

--- Takes what a step took; after the last one says all. A collective of all ranks then.
---@param t nnscaler.Trainer
---@param metrics table<string, number>
function Prediction:after_step(t, metrics)
  if self.done then return end
  local states = t.engine.states
  local step, waited = t.step - self.first, groups.seconds() + (states and states.times.waited or 0)
  if step >= kFirst then
    self.walls[#self.walls + 1] = metrics.train_wall
    self.waits[#self.waits + 1] = waited - self.waited
  elseif step == kFirst - 1 then
    door.memory(true)
  end
  self.waited = waited
  if step < kSteps then return end
  self.done = true
  self:tell(t)
end

-- The hardware that the prediction is for: as named, else this machine where it was measured.
function Prediction:hardware(t)
  if self.named then return self.named end
  local ok, err = pcall(solve.hardware, 'measured')
  if ok then return 'measured' end
  local text = type(err) == 'table' and err.message or tostring(err)
  if not text:find 'has no profile' then t:say('info', 'Profile not used: %s', text) end
  return 'cpu'
end

-- The account of the plan.
local function account_of(t, hardware)
  local line, graph = explain.line_of(t.engine)
  line.options.hardware = hardware
  local settings = autodist.settings(graph, line:policy_config(graph))
  return line:account(graph, line.plan, settings), line.plan
end

-- Seconds that each pipeline rank is not computing in a step.
local function idle_of(account)
  local last, idle = 0, {}
  for _, line in ipairs(account.line) do
    for _, part in ipairs(line) do last = math.max(last, part.stop) end
  end
  for r, line in ipairs(account.line) do
    idle[r] = last
    for _, part in ipairs(line) do idle[r] = idle[r] - (part.stop - part.start) end
  end
  return idle
end

-- The pipeline rank that runs a stage.
local function row_of(account, stage)
  for r, line in ipairs(account.line) do
    for _, part in ipairs(line) do
      if part.stage == stage then return r end
    end
  end
  return 1
end

local function percent(predicted, measured)
  return ('%+.1f %%'):format(100 * (predicted / measured - 1))
end

function Prediction:tell(t)
  local _, peak = door.memory()
  local alone = t.world_size == 1 or not t.sharing or ranks.place().launcher ~= 'none'
  local all = {}
  for r, text in ipairs(ranks.exchange(base.json_encode { wall = median(self.walls),
    wait = median(self.waits), peak = alone and peak or -1,
    told = t.memory and t.memory.total or -1 })) do
    all[r] = base.json_decode(text)
  end
  if t.rank ~= 0 then return end
  local hardware = self:hardware(t)
  local account, plan = account_of(t, hardware)
  local idle, info = idle_of(account), plan:info()
  t:say('info', 'Predicted for %s and measured over %d steps: a step %.4g s and %.4g s (%s)',
    solve.hardware(hardware).name, #self.walls, account.seconds, all[1].wall,
    percent(account.seconds, all[1].wall))
  for _, of in ipairs(account.ranks) do
    local measured = all[of.rank + 1]
    local stages, sent, parts = {}, 0, plan:parts(of.rank % info.plan_ngpus)
    for i, part in ipairs(parts) do stages[i] = tostring(part.stage) end
    for _, spent in ipairs(of.spent) do
      if spent.communication then sent = sent + spent.forward + spent.backward end
    end
    local predicted = measured.told
    local waiting = idle[row_of(account, parts[1].stage)] + account.sums
      + sent * (t.engine.options.micro_batches or 1)
    local peak_of = (measured.peak < 0 or predicted < 0) and '' or (', peak %s and %s (%s)'):format(
      units.bytes(predicted), units.bytes(measured.peak), percent(predicted, measured.peak))
    local more = of.ranks > 1 and (' and %d more'):format(of.ranks - 1) or ''
    t:say('info', '  stage %s (rank %d%s): waiting and communication %s and %s%s',
      table.concat(stages, ', '), of.rank, more, format.seconds(waiting),
      format.seconds(measured.wait), peak_of)
  end
end

return M
