--- Rank threads and processes compute the same bits: plans of the matrix under local, mpi and gloo.
--- All reduce in the order of ranks, so nothing may differ; that each is right is compared with one
--- device too. A group of processes runs all its cells.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local matrix = require 'tests.equivalence.plans.matrix'
local runner = require 'tests.equivalence.plans.runner'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()

-- Dropout and empty micro-batches; buffers; sizes that no number divides; shapes that differ from
-- one micro-batch to the next. Every plan meets the first.
local models = { [2] = { 'gpt tied', 'gpt dropout', 'statistics', 'uneven', 'lengths' },
  [4] = { 'gpt tied', 'uneven' } }
local launcher_of = { mpi = 'mpirun', gloo = 'torchrun' }

local function cells_on(ranks)
  local cells = {}
  for _, plan in ipairs(matrix.plans) do
    for _, model in ipairs(models[ranks]) do
      local refused = matrix.refused[model] and matrix.refused[model][plan.name]
      if plan.ranks == ranks and not refused and (not plan.of or plan.of[model]) then
        cells[#cells + 1] = setmetatable({ model = model, dtype = 'float64', bits = true },
          { __index = plan })
      end
    end
  end
  return cells
end

local function copy_of(cells)
  local list = {}
  for i, cell in ipairs(cells) do list[i] = setmetatable({}, { __index = cell }) end
  return list
end

describe('rank threads and processes', function()
  teardown(remove)
  for _, n in ipairs { 2, 4 } do
    local cells, threads = cells_on(n), nil

    local function under_threads()
      if not threads then
        threads = copy_of(cells)
        runner.run(threads)
      end
      return threads
    end

    for _, backend in ipairs { 'mpi', 'gloo' } do
      it(('compute the same bits in %d cells: local and %s, %d ranks'):format(#cells, backend, n),
        function()
          local ins, outs = folder .. '/in.json', folder .. '/out.json'
          base.file_write(ins, runner.encode(cells))
          local said, code = launchers.run(launcher_of[backend], n,
            ('tests/cli/jobs/plans_rank.lua %s %s %s'):format(backend, ins, outs), 300)
          assert.equal(0, code, said)
          local processes = copy_of(cells)
          runner.keep(processes, base.json_decode(base.file_read(outs)))
          for i, cell in ipairs(under_threads()) do
            local what = ('%s, %s'):format(cell.model, cell.name)
            local problem = runner.problem(processes[i])
            assert(not problem, ('%s: %s'):format(what, problem))
            for r, result in ipairs(cell.results) do
              assert.is_string(result.bits)
              assert.equal(result.bits, processes[i].results[r].bits,
                ('%s, rank %d'):format(what, r - 1))
            end
          end
        end)
    end
  end
end)
