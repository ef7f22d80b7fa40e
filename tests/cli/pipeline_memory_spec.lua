--- The memory of pipelines that a program tells of before it runs, against what the allocator
--- counts in each process: as many micro-batches as the schedule of the rank keeps in flight.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

-- Stages, ranks and the micro-batches in flight of each rank, of 8 in a step.
local schedules = {
  gpipe = { config = '', ranks = 2, in_flight = { 8, 8 } },
  ['1f1b'] = { config = '', ranks = 2, in_flight = { 2, 1 } },
  ['1f1b_interleaved'] = { config = ' pas_config.pipeline_chunks=2', ranks = 2 },
  zb_h1 = { config = '', ranks = 2 },
  zbv = { config = '', ranks = 2 },
  chimera = { config = '', ranks = 2 },
}

describe('memory of a pipeline under', function()
  for name, schedule in require('nnscaler.sorted').sorted_pairs(schedules) do
    it(name, function()
      local folder, remove = shell.folder()
      local said, code = shell.nnscaler(('run tests/cli/jobs/pipeline_memory.lua -n %d folder=%s '
        .. 'pas_policy=pp pas_config.pipeline_scheduler=%s%s gen_savedir=%s/gen'):format(
        schedule.ranks, folder, name, schedule.config, folder))
      assert.equal(0, code, said)
      for rank = 0, schedule.ranks - 1 do
        local m = base.json_decode(base.file_read(('%s/%d'):format(folder, rank)))
        local most = m.peak + m.gradients
        local text = ('rank %d: %d counted, %d told, %d in flight'):format(rank, m.counted, most,
          m.in_flight)
        print(name, text)
        assert.is_true(m.counted <= 1.05 * most and m.counted >= 0.9 * most, text)
        if schedule.in_flight then
          assert.equal(schedule.in_flight[rank + 1], m.in_flight, text)
        end
      end
      remove()
    end)
  end
end)
