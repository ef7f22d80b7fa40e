--- Ranks as processes, started as people start them: the losses and norms of one rank, one voice,
--- checkpoints that any other way of starting goes on from.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local job = 'recipes/nanogpt.lua preset=tiny layers=1 width=16 block=8 precision=fp64 '
  .. 'max_val_steps=2 micro_batch_size=2 global_batch_size=4 dropout=0.1 threads=1'

local runs = training.new(job)
local folder, arguments, rows, near = runs.folder, runs.arguments, runs.rows, training.near

describe('ranks as processes', function()
  teardown(runs.remove)
  local out, code = shell.nnscaler(arguments('one', 'max_train_steps=20'))
  assert.equal(0, code, out)
  local want = rows 'one'

  local function train(launcher, n, name, more)
    local said, failed = launchers.run(launcher, n, arguments(name, 'max_train_steps=20 ' .. more))
    assert.equal(0, failed, said)
    return said
  end

  for i, case in ipairs {
    { 'mpirun', 2, 'dp' }, { 'mpirun', 2, 'tp' }, { 'mpirun', 2, 'pp' }, { 'mpirun', 4, 'hybrid' },
    { 'torchrun', 2, 'tp' }, { 'torchrun of two nodes', 4, 'hybrid' },
    { 'variables set by hand', 2, 'pp' }, { "Slurm's variables", 2, 'dp' },
    { 'nnscaler run -n', 2, 'fsdp' }, { 'nnscaler run -n', 4, 'hybrid' },
    { 'mpirun', 2, 'fsdp' }, { 'torchrun', 2, 'dp' }, { 'torchrun', 2, 'pp' },
    { 'torchrun', 2, 'fsdp' }, { 'nnscaler run -n', 2, 'dp' }, { 'nnscaler run -n', 2, 'tp' },
    { 'nnscaler run -n', 2, 'pp' },
  } do
    it(('train as one does: %s, %d ranks, %s'):format(unpack(case)), function()
      local name = 'case' .. i
      train(case[1], case[2], name, 'pas_policy=' .. case[3])
      near(want, rows(name))
    end)
  end

  it('speak with one voice, and say where each rank is', function()
    local said = train('mpirun', 2, 'voice', 'pas_policy=tp stop_after_steps=2')
    assert.matches('2 ranks joined by mpi, started by mpirun; 2 on this host', said)
    assert.matches('Rank 0: host %S+, device cpu, processors %d', said)
    assert.matches('Rank 1: host %S+, device cpu, processors %d', said)
    assert.is_nil(said:find('| rank 1 |', 1, true), said)
    local _, saved = said:gsub('Saving checkpoint after 2 steps', '')
    assert.equal(1, saved)
    assert.equal('file', base.file_exists(folder .. '/voice.gen/GPT/gencode1.lua'))
  end)

  it('are done when all have said so, also where mpirun does not end', function()
    local path = folder .. '/late'
    base.make_folder(path)
    base.file_write(path .. '/mpirun', '#!/bin/sh\nPATH=${PATH#*:}\nmpirun "$@"\nexec sleep 60\n')
    local began = base.clock()
    local said, failed = shell.nnscaler(arguments('late', 'max_train_steps=1 -n 2'),
      ("chmod +x '%s/mpirun'; PATH='%s':$PATH"):format(path, path))
    assert.equal(0, failed, said)
    assert.is_true(base.clock() - began < 50)
  end)

  it('say how much of the sums of gradients went on beside backward', function()
    -- Backward is long beside the time by which a rank may come late to a sum.
    local changes = 'pas_policy=dp stop_after_steps=5 layers=4 width=64 block=64 '
      .. 'compute_config.reducer_bucket_cap_mb='
    local pattern =
      'Sums of gradients over ranks: under way [%d.]+ ms a step, (%d+) %% of it beside backward'
    local said = train('mpirun', 2, 'overlap', changes .. '0.001')
    local share = tonumber(said:match(pattern))
    assert.is_true(share ~= nil and share > 0 and share <= 100, said)
    said = train('mpirun', 2, 'whole', changes .. '25') -- one bucket
    assert.is_truthy(said:match(pattern), said)
  end)

  it('go on from what ranks of another kind saved', function()
    train('mpirun', 2, 'cross', 'pas_policy=tp stop_after_steps=7')
    train('variables set by hand', 2, 'cross',
      'pas_policy=dp stop_after_steps=13 checkpoint.resume_from=last')
    local said, failed = shell.nnscaler(arguments('cross',
      'max_train_steps=20 checkpoint.resume_from=last'))
    assert.equal(0, failed, said)
    near(want, rows 'cross')
  end)

  it('warn of more threads than processors', function()
    local said = train('mpirun', 2, 'threads', 'stop_after_steps=1 threads=64')
    assert.matches('64 threads compute on [%d.]+ processor', said)
  end)

  it('know their place in a recipe and in hooks', function()
    local recipe = folder .. '/places.lua'
    base.file_write(recipe, [[
      local nnscaler = require 'nnscaler'
      local job = dofile 'recipes/quickstart.lua'
      local seen = ('rank %d of %d, %d of %d here'):format(nnscaler.rank(), nnscaler.world_size(),
        nnscaler.local_rank(), nnscaler.local_world_size())
      job.max_train_steps, job.max_epochs = 1, nil
      job.hook = { on_train_end = function()
        nnscaler.barrier()
        print(seen)
      end }
      return job
    ]])
    local options = (' checkpoint.no_save=true threads=1 gen_savedir=%s/places.gen'):format(folder)
    local said, failed = launchers.run('mpirun', 2, 'run ' .. recipe .. options)
    assert.equal(0, failed, said)
    assert.matches('rank 0 of 2, 0 of 2 here', said)
    assert.matches('rank 1 of 2, 1 of 2 here', said)
    said, failed = shell.nnscaler('run ' .. recipe .. options .. ' comm.backend=local -n 2')
    assert.equal(0, failed, said)
    assert.matches('rank 0 of 2, 0 of 2 here', said)
    assert.matches('rank 1 of 2, 1 of 2 here', said)
  end)
end)
