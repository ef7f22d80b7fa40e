--- recipes/rannc_tutorial.lua prints what RaNNC's tutorial prints, for two ranks here and for the
--- cluster that it was run on.
local shell = require 'tests.cli.support.shell'

local function follow(text, parts)
  local at = 1
  for _, part in ipairs(parts) do
    local _, stop = text:find(part, at)
    assert.is_truthy(stop, ('%s does not follow in:\n%s'):format(part, text))
    at = stop
  end
end

describe('the tutorial of RaNNC', function()
  it('runs on two ranks', function()
    local out, code = shell.nnscaler('recipes/rannc_tutorial.lua ranks=2 batch=64 hidden=512 '
      .. 'layers=10 2>&1')
    assert.equal(0, code, out)
    follow(out, { 'Tracing model', 'Assuming batch size: 128', 'Available device memory: %d+',
      'Starting model partitioning', 'batch_size=128 np=2 pipeline=1 use_amp=0 zero=0',
      'graph=MERGE_0_9 repl=2 fwd_time=%d+ bwd_time=%d+ ar_time=978 in_size=131072 '
      .. 'out_size=131072 fp32param_size=10506240 fp16param_size=0 total_mem=%d+ %(fwd%+bwd=%d+ '
      .. 'opt=21012480 comm=393216%)', 'Assigned subgraph MERGE_0_9 to rank%[0,1%]',
      'Routes verification passed', 'Synchronizing parameters' })
    for _, said in ipairs { '#Parameters=2626560', 'Started on rank 0', 'Started on rank 1',
      'is ready%. %(rank0%)', 'is ready%. %(rank1%)', 'Finished on rank0', 'Finished on rank1' } do
      assert.matches(said, out)
    end
  end)

  it('plans for the cluster of the tutorial', function()
    local out, code = shell.nnscaler('recipes/rannc_tutorial.lua batch=64 hidden=5000 layers=100 '
      .. 'hardware=a100-40x8 world=8 2>&1')
    assert.equal(0, code, out)
    follow(out, { '#Parameters=2500500000', 'Assuming batch size: 512',
      'Available device memory: 38255689728', 'batch_size=512 np=8 pipeline=1', 'repl=4',
      'in_size=2560000 out_size=2560000', 'comm=7680000', 'repl=4', 'comm=7680000',
      'to rank%[0,2,4,6%]', 'to rank%[1,3,5,7%]' })
    -- By the simulator SGD, which keeps nothing, leaves room for whole replicas, which are faster.
    out, code = shell.nnscaler('recipes/rannc_tutorial.lua batch=64 hidden=5000 layers=100 '
      .. 'hardware=a100-40x8 world=8 rannc_costs=false 2>&1')
    assert.equal(0, code, out)
    local one = tonumber(out:match 'rannc: 1 stage%(s%): ([%d.]+) s a step')
    assert.is_true(one < tonumber(out:match 'rannc: 2 stage%(s%): ([%d.]+) s a step'), out)
    follow(out, { 'graph=MERGE_0_9 repl=8 ', 'opt=0 ', 'to rank%[0,1,2,3,4,5,6,7%]' })
  end)
end)
