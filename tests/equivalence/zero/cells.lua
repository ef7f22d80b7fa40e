--- Cells of the ZeRO tests: levels × layouts × accumulation × recompute × masks. `covering` gives
--- some of them that have every pair of factors.
local M = {}

-- zero: compute_config.use_zero; scatter: zero_use_reduce_scatter; groups: zero_ngroups
M.levels = {
  { name = 'zero 0', zero = 0 }, { name = 'zero 1', zero = 1 },
  { name = 'zero 1, scattered', zero = 1, scatter = true }, { name = 'zero 2', zero = 2 },
  { name = 'zero 3', zero = 3 },
}

-- policy, plan_ngpus, ranks, pas_config of the policy
M.layouts = {
  { name = 'dp 4', policy = 'dp', plan = 1, ranks = 4 },
  { name = 'tp 2 × dp 2', policy = 'tp', plan = 2, ranks = 4, config = { seed = 4 } },
  { name = 'pp 2 × dp 2', policy = 'pp', plan = 2, ranks = 4 },
  { name = 'tp 2 × pp 2', policy = 'hybrid', plan = 4, ranks = 4,
    config = { pipeline_nstages = 2 } },
  { name = 'megatron 2 × dp 2', policy = 'megatron', plan = 2, ranks = 4 },
  { name = 'megatron 2, sequence parallel, × dp 2', policy = 'megatron', plan = 2, ranks = 4,
    config = { sequence_parallel = true } },
}

local factors = { M.levels, M.layouts, { 1, 4 }, { false, true }, { false, true } }

local function cell_of(choice)
  local level, layout = factors[1][choice[1]], factors[2][choice[2]]
  local accumulation, recompute, masked = factors[3][choice[3]], factors[4][choice[4]],
    factors[5][choice[5]]
  return { name = ('%s, %s, %d micro-batch(es)%s%s'):format(level.name, layout.name, accumulation,
    recompute and ', recompute' or '', masked and ', masks' or ''), zero = level.zero,
    scatter = level.scatter, policy = layout.policy, plan = layout.plan, ranks = layout.ranks,
    config = layout.config, accumulation = accumulation, recompute = recompute, masked = masked }
end

-- All choices of one value of each factor.
local function product()
  local all = { {} }
  for f, values in ipairs(factors) do
    local longer = {}
    for _, choice in ipairs(all) do
      for v = 1, #values do
        local one = { unpack(choice) }
        one[f] = v
        longer[#longer + 1] = one
      end
    end
    all = longer
  end
  return all
end

local function pairs_of(choice)
  local list = {}
  for f = 1, #choice do
    for g = f + 1, #choice do
      list[#list + 1] = ('%d=%d %d=%d'):format(f, choice[f], g, choice[g])
    end
  end
  return list
end

--- All cells.
---@return table[]
function M.all()
  local list = {}
  for i, choice in ipairs(product()) do list[i] = cell_of(choice) end
  return list
end

--- Cells in which each pair of values of two factors is together at least once: as few as a greedy
--- choice needs, then others up to `least`.
---@param least? integer
---@return table[]
function M.covering(least)
  local all, seen, left, list = product(), {}, {}, {}
  for _, choice in ipairs(all) do
    for _, pair in ipairs(pairs_of(choice)) do left[pair] = true end
  end
  while next(left) do
    local best, most = nil, 0
    for i, choice in ipairs(all) do
      local new = 0
      for _, pair in ipairs(seen[i] and {} or pairs_of(choice)) do
        new = new + (left[pair] and 1 or 0)
      end
      if new > most then best, most = i, new end
    end
    seen[best] = true
    for _, pair in ipairs(pairs_of(all[best])) do left[pair] = nil end
    list[#list + 1] = cell_of(all[best])
  end
  -- Every so many of the others.
  for i = 1, #all do
    if #list >= (least or 0) then break end
    local at = (i * 7) % #all + 1 -- 7 does not divide their number
    if not seen[at] then
      seen[at], list[#list + 1] = true, cell_of(all[at])
    end
  end
  return list
end

return M
