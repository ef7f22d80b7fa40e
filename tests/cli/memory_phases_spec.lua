--- What a run says that it will take, phase by phase, against what the allocator counts in each
--- process: never less, and at most 5 % more. And `compile --report` says the same.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'
local sorted = require 'nnscaler.sorted'
local units = require 'nnscaler.units'

local blocks = " pas_config.recompute_modules='transformer.h.*'"
local away = " pas_config.offload_modules='transformer.h.*'"

local cases = {
  { 'one device', 1, '' },
  { 'one device, four micro-batches', 1, 'grad_accumulation_steps=4' },
  { 'one device, dropout', 1, 'dropout=0.1' },
  { 'one device, recomputed blocks', 1, blocks .. ' grad_accumulation_steps=2' },
  { 'one device, activations on the host', 1, away },
  { 'one device, states on the host', 1, 'compute_config.zero_offload=all' },
  { 'one device, bf16', 1, 'precision=bf16' },
  { 'one device, bf16 products, two micro-batches', 1, 'precision=bf16-mixed '
    .. 'grad_accumulation_steps=2' },
  { 'dp', 2, 'pas_policy=dp' },
  { 'dp, four micro-batches, clipped', 2, 'pas_policy=dp grad_accumulation_steps=4 clip=0.01' },
  { 'ZeRO 1', 2, 'pas_policy=dp compute_config.use_zero=1' },
  { 'ZeRO 1, scattered', 2, 'pas_policy=dp compute_config.use_zero=1 '
    .. 'compute_config.zero_use_reduce_scatter=true' },
  { 'ZeRO 2, two micro-batches', 2, 'pas_policy=dp compute_config.use_zero=2 '
    .. 'grad_accumulation_steps=2' },
  { 'ZeRO 3, recomputed blocks', 2, 'pas_policy=fsdp' .. blocks },
  { 'ZeRO 2, optimizer on the host', 2, 'pas_policy=dp compute_config.use_zero=2 '
    .. 'compute_config.zero_offload=optimizer' },
  { 'tp', 2, 'pas_policy=megatron compute_config.plan_ngpus=2 grad_accumulation_steps=2' },
  { 'pp', 2, 'pas_policy=pp compute_config.plan_ngpus=2 grad_accumulation_steps=4' },
}

-- What a run takes at most by what it tells, and the phases of ranks where that is wrong.
local function compare(case, job, folder)
  local said, code = shell.nnscaler('run ' .. job .. (case[2] > 1 and ' -n 2' or ''))
  assert.equal(0, code, said)
  local most, bad = 0, {}
  for rank = 0, case[2] - 1 do
    local told = base.json_decode(base.file_read(('%s/%d'):format(folder, rank)))
    for phase, counted in sorted.sorted_pairs(told.counted) do
      local predicted = told.told[phase]
      local share = 100 * (predicted / counted - 1)
      print(('  %s, rank %d, %s: %d predicted, %d counted, %+.2f %%'):format(case[1], rank, phase,
        predicted, counted, share))
      if share < 0 or share > 5 then bad[#bad + 1] = ('%s of rank %d'):format(phase, rank) end
      most = math.max(most, predicted)
    end
  end
  return most, table.concat(bad, ', ')
end

describe('memory told of each phase is at most 5 % more than counted:', function()
  for _, case in ipairs(cases) do
    it(case[1], function()
      local folder, remove = shell.folder()
      local job = ('tests/cli/jobs/memory_phases.lua folder=%s gen_savedir=%s/gen %s'):format(
        folder, folder, case[3])
      local most, bad = compare(case, job, folder)
      assert.equal('', bad)
      local report = shell.nnscaler('compile ' .. job .. ' --report'
        .. (case[2] > 1 and ' compute_config.runtime_ngpus=2' or ''))
      local number, unit = report:match 'Most memory: rank %d with (%S+) (%S+)'
      assert.equal(units.bytes(most), ('%s %s'):format(number, unit), report)
      remove()
    end)
  end
end)
