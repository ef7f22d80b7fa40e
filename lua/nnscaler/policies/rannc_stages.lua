--- The stage search of RaNNC (Tanaka et al., IPDPS 2021; DPStaging of its source): ordered blocks
--- become contiguous stages with replicas of their own, by dynamic programming over (stages,
--- blocks, devices); of the plans kept, the one of the least fill-drain estimate. Times are whole
--- microseconds, as in RaNNC.
local M = {}

local kInfinity = math.huge

---@class nnscaler.rannc.Problem
---@field blocks integer
---@field batch integer samples of a step, of all copies
---@field devices_per_node integer
---@field devices integer
---@field limit number bytes of a device that a stage must stay below
---@field profile fun(from: integer, to: integer, samples: integer, micro: integer): number, number,
---  number forward and backward time, peak bytes of blocks from … to, counted from 1
---@field input fun(from: integer, to: integer, samples: number): number bytes that enter
---@field output fun(from: integer, to: integer, samples: number): number bytes that leave
---@field parameters fun(from: integer, to: integer): number bytes
---@field opt_param_factor number
---@field min_pipeline integer
---@field max_pipeline integer
---@field min_pipeline_bs integer
---@field partition_num integer 0: any
---@field dp_search_all boolean
---@field limit_dev_num_pot boolean
---@field limit_dev_num_more_than_bs boolean

---@class nnscaler.rannc.Stage
---@field from integer block
---@field to integer
---@field replicas integer

---@class nnscaler.rannc.Found
---@field stages nnscaler.rannc.Stage[]
---@field micro integer
---@field copies integer
---@field estimate number

--- Microseconds of a message at 20 GiB/s.
---@param bytes number
---@return integer
function M.message(bytes) return math.floor(bytes * 1e6 / (20 * 2 ^ 30)) end

--- Microseconds of an all-reduce at 10 GiB/s.
---@param bytes number
---@return integer
function M.all_reduce(bytes) return math.floor(bytes * 1e6 / (10 * 2 ^ 30)) end

local function traffic(p, from, to, parts)
  return M.message(math.floor(p.input(from, to, p.batch) / parts))
    + M.message(math.floor(p.output(from, to, p.batch) / parts))
end

--- Bytes of a stage: peak, optimizer state, buffers of what it receives (twice: its gradient) and
--- sends.
---@param p nnscaler.rannc.Problem
---@param from integer
---@param to integer
---@param samples integer
---@param micro integer
---@return number
function M.memory(p, from, to, samples, micro)
  local _, _, peak = p.profile(from, to, samples, micro)
  return peak + p.opt_param_factor * p.parameters(from, to) + 2 * p.input(from, to, samples)
    + p.output(from, to, samples)
end

local function power_of_two(x)
  while x > 1 do
    if x % 2 ~= 0 then return false end
    x = x / 2
  end
  return true
end

-- Whether a filter drops a stage of x devices.
local function dropped(p, x, copies, micro)
  local each = p.batch / (copies * micro)
  return p.limit_dev_num_more_than_bs and x > math.ceil(each)
    or p.limit_dev_num_pot and not power_of_two(x)
    or math.ceil(math.ceil(each) / x) < p.min_pipeline_bs
end

-- The plan of so many stages, copies and micro-batches; nil where none fits.
local function search(p, stages, devices, copies, micro)
  local states = {} -- [stages][blocks][devices]
  for s = 0, stages do
    states[s] = {}
    for b = 0, p.blocks do states[s][b] = {} end
  end
  for b = 0, p.blocks do
    for d = 0, devices do states[0][b][d] = { value = 0, forward = 0, backward = 0 } end
  end
  for s = 1, stages do
    local least = 1
    for b = s == stages and p.blocks or s, p.blocks - stages + s do
      local any = false
      for d = devices, math.max(least, s), -1 do
        local found, skipped = false, false
        for before = s - 1, s == 1 and 0 or b - 1 do
          for used = s - 1, s == 1 and 0 or d - 1 do
            local x, from = d - used, states[s - 1][before][used]
            if dropped(p, x, copies, micro) then
              skipped = true
            elseif from then
              local samples = math.ceil(p.batch / (x * copies * micro))
              local f, g = p.profile(before + 1, b, samples, micro)
              local c = traffic(p, before + 1, b, x * copies * micro)
              local value = math.max(f + c, from.forward) + math.max(g + c, from.backward)
              -- With more devices before it this stage has fewer: no less memory.
              if M.memory(p, before + 1, b, samples, micro) >= p.limit then break end
              found, any = true, true
              local known = states[s][b][d]
              if value < (known and known.value or kInfinity) then
                states[s][b][d] = { value = math.max(value, from.value),
                  forward = math.max(f, from.forward), backward = math.max(g, from.backward),
                  blocks = before, devices = used }
              end
            end
          end
        end
        if not found and not skipped then
          least = d + 1
          break
        end
      end
      if not any then break end
    end
  end
  if not states[stages][p.blocks][devices] then return nil end
  local list, b, d = {}, p.blocks, devices
  for s = stages, 1, -1 do
    local state = states[s][b][d]
    if not state then return nil end
    list[s] = { from = state.blocks + 1, to = b, replicas = (d - state.devices) * copies }
    b, d = state.blocks, state.devices
  end
  return list
end

--- The fill-drain estimate of a plan.
---@param p nnscaler.rannc.Problem
---@param stages nnscaler.rannc.Stage[]
---@param micro integer
---@return number
function M.estimate(p, stages, micro)
  local total, reduce = 0, 0
  for step = 0, micro + #stages - 2 do
    local forward, backward = 0, 0
    for g = math.max(0, step - micro + 1), math.min(step + 1, #stages) - 1 do
      local stage = stages[g + 1]
      local samples = math.ceil(p.batch / (stage.replicas * micro))
      local f, w = p.profile(stage.from, stage.to, samples, micro)
      local c = traffic(p, stage.from, stage.to, stage.replicas * micro)
      forward, backward = math.max(forward, f + c), math.max(backward, w + c)
    end
    total = total + forward + backward
  end
  for _, stage in ipairs(stages) do
    reduce = math.max(reduce, M.all_reduce(p.parameters(stage.from, stage.to)))
  end
  return total + reduce
end

--- All plans that RaNNC keeps, in the order in which it finds them, and the chosen one.
---@param p nnscaler.rannc.Problem
---@return nnscaler.rannc.Found[] kept
---@return nnscaler.rannc.Found|nil best nil where nothing fits
function M.search(p)
  local nodes, kept, before = p.devices / p.devices_per_node, {}, 0
  for used = 1, nodes do
    if nodes % used == 0 then
      local first, last = before + 1, p.devices_per_node * used
      before = last
      if p.partition_num > 0 then first, last = p.partition_num, p.partition_num end
      local enough = false
      for stages = math.min(first, p.blocks), math.min(last, p.blocks) do
        local micro, found = math.max(1, p.min_pipeline), false
        while micro <= math.min(p.batch, p.max_pipeline) do
          local copies = nodes / used
          local list = search(p, stages, p.devices_per_node * used, copies, micro)
          if list then
            found = true
            kept[#kept + 1] = { stages = list, micro = micro, copies = copies,
              estimate = M.estimate(p, list, micro) }
          end
          micro = micro * 2
        end
        enough = found and not p.dp_search_all
        if enough then break end
      end
      if enough then break end
    end
  end
  local best
  for _, found in ipairs(kept) do
    if not best or found.estimate < best.estimate then best = found end
  end
  return kept, best
end

--- Devices of each stage, counted from 0: in turns, so that the stages are interleaved over the
--- devices (`alloc_repl_flat`), else stages with more replicas first, each in one run.
---@param counts integer[] replicas of each stage
---@param flat boolean
---@return integer[][]
function M.allocate(counts, flat)
  local devices, order, turns, at = {}, {}, 1, 0
  for s in ipairs(counts) do devices[s], order[s] = {}, s end
  if flat then
    turns = counts[1]
    for _, count in ipairs(counts) do
      local a, b = turns, count
      while b > 0 do a, b = b, a % b end
      turns = a
    end
  else
    table.sort(order, function(a, b)
      if counts[a] ~= counts[b] then return counts[a] > counts[b] end
      return a < b
    end)
  end
  for _ = 1, turns do
    for _, s in ipairs(order) do
      for _ = 1, counts[s] / turns do
        table.insert(devices[s], at)
        at = at + 1
      end
    end
  end
  return devices
end

return M
