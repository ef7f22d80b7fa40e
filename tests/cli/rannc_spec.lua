--- Plans of the rannc policy train as one device does: whole on two replicas, in two stages, and
--- with what RaNNC's own formulas choose, executed again in backward.
local shell = require 'tests.cli.support.shell'

local job = 'recipes/nanogpt.lua preset=tiny layers=3 width=32 block=16 threads=1 max_train_steps=2'

describe('rannc', function()
  for _, more in ipairs { 'pas_config.partition_num=1', 'pas_config.partition_num=2',
    'pas_config.partition_num=2 pas_config.rannc_costs=true' } do
    it('equals one device with ' .. more, function()
      local out, code = shell.nnscaler(('verify %s pas_policy=rannc compute_config.plan_ngpus=2 '
        .. 'compute_config.runtime_ngpus=2 grad_accumulation_steps=2 %s'):format(job, more))
      assert.equal(0, code, out)
      assert.matches('The plan equals one device', out)
      assert.matches('transformer.ln_f.weight +%S+ +' .. (more:find '=1$' and 0 or 1) .. '\n', out)
    end)
  end
end)
