--- What several ranks refuse, and in which words: jobs that differ, addresses that lead nowhere.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local job = ('run recipes/quickstart.lua threads=1 checkpoint.no_save=true gen_savedir=%s/g')
  :format(folder)

-- Ranks started by hand, each with its own arguments; of `recipe`, or the quick start.
local function by_hand(arguments, recipe)
  local port, commands = launchers.port(), {}
  local of = recipe and job:gsub('recipes/quickstart.lua', recipe) or job
  for r, own in ipairs(arguments) do
    commands[r] = ("RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d timeout 60 '%s' "
      .. '%s %s'):format(r - 1, #arguments, port, shell.binary, of, own)
  end
  return shell.run(shell.at_once(commands))
end

local function alone(variables, more)
  return shell.run(("RANK=%d WORLD_SIZE=2 %s timeout 60 '%s' %s %s"):format(
    variables:find 'rank0' and 0 or 1, (variables:gsub('rank0', '')), shell.binary, job,
    more or ''))
end

describe('several ranks refuse', function()
  teardown(remove)

  it('jobs that differ, and name the key', function()
    local said, code = by_hand { 'micro_batch_size=1', 'micro_batch_size=2' }
    assert.equal(2, code, said)
    assert.matches("[comm.job] the ranks were given different jobs: rank 0 has "
      .. "'micro_batch_size: 1', rank 1 has 'micro_batch_size: 2'", said, 1, true)
    local _, times = said:gsub('%[comm.job%]', '')
    assert.is_true(times <= 2, said) -- the cause, and who leaves because of it
  end)

  -- Runs the quick start with a change of its job, given as Lua, on two ranks.
  local function changed(change, more, expected)
    base.file_write(folder .. '/q.lua',
      "local job = dofile 'recipes/quickstart.lua'\n" .. change .. '\nreturn job\n')
    local said, code = by_hand({ more or '', more or '' }, folder .. '/q.lua')
    assert.equal(expected or 1, code, said)
    return said
  end

  it('models that differ under one job', function()
    local said = changed [[
      job.model = function() -- of another width on each rank
        local hidden = 10 + require('nnscaler').rank()
        return require 'nnscaler.models.mlp' { sizes = { 100, hidden, 10 } }
      end]]
    assert.matches('rank 1 made another graph or plan than rank 0', said)
  end)

  it('recipes that differ, and name the key', function()
    local said = changed([[
      job.model.args.sizes = { 100, 10 + require('nnscaler').rank(), 10 }]], nil, 2)
    assert.matches("[comm.job] the ranks were given different jobs: rank 0 has '", said, 1, true)
    assert.matches("rank 1 has '[^']*11", said)
  end)

  it('micro-batches that differ on the ranks of a plan', function()
    local data = [[
      local nnscaler, set = require 'nnscaler', job.dataset
      job.dataset = setmetatable({ training_loader = function(_, options)
        local loader = nnscaler.data.training_loader(set, options)
        return setmetatable({ get = function(_, n)
          local s = loader:get(n)
          if nnscaler.rank() == 1 and n == %d then %s end
          return s
        end }, { __index = loader })
      end }, { __index = set })]]
    local said = changed(data:format(7, 's.x, s.y = s.x:narrow(0, 0, 1), s.y:narrow(0, 0, 1)'),
      'pas_policy=tp micro_batch_size=2')
    assert.matches('[runtime.sample] step 8: rank 1 has another micro-batch 0 than rank 0: '
      .. 'x float32[1, 100] y int64[1] and not x float32[2, 100] y int64[2]', said, 1, true)
    said = changed(data:format(1, 's.x:add_(1e-3)'), 'pas_policy=tp micro_batch_size=2')
    assert.matches('[runtime.sample] step 2: rank 1 has another micro-batch 0 than rank 0; '
      .. 'expected one sample on all ranks of a scale unit', said, 1, true)
  end)

  it('to wait for each other before they have joined', function()
    local said = changed("require('nnscaler').barrier()", nil, 2)
    assert.matches('[comm.barrier] the ranks have not joined yet: a recipe is evaluated before',
      said, 1, true)
  end)

  it('back ends that do not exist, and list those that do', function()
    local said, code = shell.nnscaler(job .. ' comm.backend=smoke -n 2')
    assert.equal(2, code, said)
    assert.matches('expected one of auto | local | gloo | mpi | nccl', said, 1, true)
  end)

  it('another number of ranks than the launcher started', function()
    local said, code = alone('MASTER_ADDR=127.0.0.1 MASTER_PORT=1', '-n 3')
    assert.equal(2, code, said)
    assert.matches('[cli.run] -n is 3, but environment started 2 ranks', said, 1, true)
  end)

  it('a port in use', function()
    local port = launchers.port()
    local said, code = shell.run(("python3 -c 'import socket, time; s = socket.socket(); "
      .. 's.bind(("", %d)); s.listen(); time.sleep(20)\' & holder=$!; sleep 0.5; RANK=0 '
      .. "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d timeout 60 '%s' %s; rc=$?; "
      .. 'kill $holder; (exit $rc)'):format(port, port, shell.binary, job))
    assert.equal(1, code, said)
    assert.matches(('[comm.gloo] rank 0 cannot serve at 127.0.0.1:%d: '):format(port), said, 1,
      true)
    assert.matches('address already in use', said, 1, true)
    assert.matches('MASTER_PORT chooses another', said, 1, true)
  end)

  it('a host that nobody reaches', function()
    local said, code = alone('MASTER_ADDR=127.0.0.1 MASTER_PORT=' .. launchers.port(),
      'comm.join_timeout_s=2')
    assert.equal(1, code, said)
    assert.matches('error: %[comm.gloo%] rank 1 cannot meet the others at '
      .. '127.0.0.1:%d+: [^\n]*timed out', said)
    said, code = alone('MASTER_ADDR=no-such-host.invalid MASTER_PORT=29500',
      'comm.join_timeout_s=2')
    assert.equal(1, code, said)
    assert.matches('cannot meet the others at no%-such%-host.invalid:29500: ', said)
    assert.matches('MASTER_ADDR has to be the host of rank 0', said, 1, true)
  end)
end)

describe('more ranks than samples', function()
  it('train all the same: a rank without samples counts for nothing', function()
    local said, code = shell.nnscaler(job .. ' -n 4 micro_batch_size=100 max_train_steps=2')
    assert.equal(0, code, said)
  end)
end)
