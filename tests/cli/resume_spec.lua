--- Runs that were killed go on bit for bit, on any number of ranks, with samples made by workers or
--- not; and with other batches on other ranks, each sample comes once, in the old order.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local sorted = require 'nnscaler.sorted'
local training = require 'tests.cli.support.training'

local runs = training.new 'tests/cli/jobs/resume.lua'

-- Starts a run on n ranks; returns what it said.
local function run(n, name, more, code)
  local changes = runs.arguments(name, ('ids=%s/%s.ids %s'):format(runs.folder, name, more))
  local said, left
  if n == 1 then
    said, left = shell.nnscaler(changes)
  else
    said, left = launchers.run('nnscaler run -n', n, changes)
  end
  if code then assert.equal(code, left, said) else assert.is_true(left ~= 0, said) end
  return said
end

-- What must repeat of each step.
local function rows(name)
  local list = {}
  for i, row in ipairs(runs.rows(name)) do
    list[i] = ('%d %d %.17g %.17g %.17g'):format(row.step, row.epoch, row.train_loss, row.gnorm,
      row.lr)
  end
  return list
end

-- Ids of the samples by number of micro-batch, in order; a step that was made twice counts once.
local function samples(name, units)
  local by_number = {}
  for u = 0, units - 1 do
    for step, k, ids in base.file_read(('%s/%s.ids.%d'):format(runs.folder, name, u))
      :gmatch '(%d+) (%d+):([%d,]+)' do
      local line = ('%03d %05d'):format(step, k)
      assert.is_true(by_number[line] == nil or by_number[line] == ids)
      by_number[line] = ids
    end
  end
  local list = {}
  for _, line in ipairs(sorted.sorted_keys(by_number)) do list[#list + 1] = by_number[line] end
  return list
end

describe('a run that was killed', function()
  teardown(runs.remove)

  for _, case in ipairs {
    { 1, 'one', '' }, { 2, 'two', 'pas_policy=dp' }, { 4, 'four', 'pas_policy=hybrid '
      .. 'compute_config.plan_ngpus=2' },
  } do
    local n, name, policy = unpack(case)
    it(('goes on bit for bit on %d rank(s), with and without workers'):format(n), function()
      run(n, name, policy, 0)
      local workers = policy .. ' dataloader.train_args.num_workers=2'
      local part = name .. '.part'
      run(n, part, workers .. ' at=13')
      local said = run(n, part, workers .. ' checkpoint.resume_from=last', 0)
      assert.matches('Resumed from %S+ after 10 steps', said)
      assert.equal(20, #rows(name))
      assert.same(rows(name), rows(part))
      local units = n == 1 and 1 or 2
      assert.same(samples(name, units), samples(part, units))
    end)
  end

  it('goes on with other ranks and batches, every sample once and in the same order', function()
    run(1, 'plain', 'max_train_steps=24', 0)
    run(2, 'moving', 'max_train_steps=24 stop_after_steps=5', 0)
    run(4, 'moving', 'max_train_steps=24 stop_after_steps=9 micro_batch_size=1 '
      .. 'global_batch_size=16 checkpoint.resume_from=last', 0)
    run(2, 'moving', 'max_train_steps=24 micro_batch_size=4 checkpoint.resume_from=last', 0)
    local function flat(list) return table.concat(list, ','):gsub(',+', ',') end
    local plain, moving = flat(samples('plain', 1)), flat(samples('moving', 4))
    local n = math.min(#plain, #moving)
    assert.is_true(n > 400)
    assert.equal(plain:sub(1, n), moving:sub(1, n))
  end)

  it('goes on with fewer scale units when told so, with the same steps', function()
    local whole = 'compute_config.runtime_ngpus=4 elastic.min_units=2 micro_batch_size=1 '
    run(4, 'units', whole, 0)
    run(4, 'fewer', whole .. 'stop_after_steps=9', 0)
    local said = run(2, 'fewer', whole .. 'checkpoint.resume_from=last', 0)
    assert.matches('2 of 4 scale units: each takes 4 micro%-batches of a step instead of 2', said)
    assert.same(samples('units', 4), samples('fewer', 4))
    local want, got = runs.rows 'units', runs.rows 'fewer'
    assert.equal(20, #got)
    for i, row in ipairs(want) do
      assert.is_true(math.abs(row.train_loss - got[i].train_loss) <= 1e-5)
      assert.equal(row.lr, got[i].lr)
    end
    said = run(1, 'fewer', whole .. 'checkpoint.resume_from=last', 2)
    assert.matches('%[trainer.elastic%] the run has 1 of 4 ranks; expected 2 or more scale units '
      .. '%(elastic.min_units%) of 1 rank%(s%) each\n[^\n]*hint: start 2 ranks or more\n', said)
    said = run(3, 'fewer', whole, 2)
    assert.matches('a step has 8 micro%-batches, which 3 scale units cannot share evenly\n[^\n]*'
      .. 'hint: start as many ranks as make 2, 4 scale units', said)
    said = run(2, 'fewer', 'elastic.min_units=1', 2)
    assert.matches('elastic.min_units is set, but compute_config.runtime_ngpus is not', said)
  end)
end)

describe('a worker', function()
  it('says what its data set said', function()
    local said = shell.nnscaler(runs.arguments('broken',
      'broken=7 max_train_steps=20 dataloader.train_args.num_workers=2'))
    assert.matches('error: [^\n]*sample 7 cannot be read', said)
  end)
end)
