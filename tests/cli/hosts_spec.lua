--- Two hosts that share no disk: network namespaces of the test's own, each with a folder that the
--- other knows nothing of. Skipped where the system refuses to make them.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local training = require 'tests.cli.support.training'

local here = (shell.run 'pwd'):match '[^\n]+'
local job = here .. '/recipes/nanogpt.lua preset=tiny layers=1 width=16 block=8 precision=fp64 '
  .. 'max_val_steps=2 micro_batch_size=2 global_batch_size=4 dropout=0.1 threads=1 '
  .. 'max_train_steps=12'

local runs = training.new(job)
local folder = runs.folder
local id = base.hash(folder):sub(1, 6)
local hosts = {}
for i = 1, 2 do
  hosts[i] = { space = ('nns-%s-%d'):format(id, i), link = ('nns%s%d'):format(id, i),
    name = 'host' .. i, address = '10.213.97.' .. i, folder = ('%s/host%d'):format(folder, i) }
end

-- What the system says that lets nobody, or not this user, make them; in a chroot, whose root is no
-- mount, nobody may change how mounts below it spread.
local lacking = { 'not permitted', 'denied', 'not found', 'not supported', 'Unknown device type',
  'make-rslave', 'filesystem propagation' }

-- `ip netns add` mounts a folder of its own when it is first used, and leaves it.
local kSpaces = '/run/netns'
local function is_mounted() return select(2, shell.run('mountpoint -q ' .. kSpaces)) == 0 end
local was_mounted = is_mounted()

local function remove_hosts()
  for _, host in ipairs(hosts) do shell.run('ip netns del ' .. host.space) end
  if not was_mounted and is_mounted() then shell.run('umount ' .. kSpaces) end
end

-- Makes the two and the cable between them; returns why this system cannot.
local function make()
  local a, b = hosts[1], hosts[2]
  local lines = {
    ('ip netns add %s && ip netns add %s'):format(a.space, b.space),
    ('ip link add %s netns %s type veth peer name %s netns %s'):format(a.link, a.space, b.link,
      b.space),
  }
  for _, host in ipairs(hosts) do
    base.make_folder(host.folder)
    lines[#lines + 1] = ('ip -n %s addr add %s/24 dev %s'):format(host.space, host.address,
      host.link)
    lines[#lines + 1] = ('ip -n %s link set %s up && ip -n %s link set lo up'):format(host.space,
      host.link, host.space)
  end
  lines[#lines + 1] = ('ip netns exec %s unshare --uts --mount true'):format(a.space)
  local said, code = shell.run(table.concat(lines, ' && '))
  if code == 0 then return nil end
  remove_hosts()
  for _, words in ipairs(lacking) do
    if said:find(words, 1, true) then return said end
  end
  error('two hosts cannot be made: ' .. said)
end

local function remove()
  remove_hosts()
  runs.remove()
end

-- Runs a command on each host at once, in its folder; returns what they said and the greatest code.
local function on_both(command_of)
  local commands, names = {}, folder .. '/names'
  base.file_write(names, ('127.0.0.1 localhost\n%s host1\n%s host2\n'):format(hosts[1].address,
    hosts[2].address))
  for i, host in ipairs(hosts) do
    local path = host.folder .. '/command'
    base.file_write(path, ('mount --bind %s /etc/hosts\nhostname %s\ncd %s\n%s\n'):format(names,
      host.name, host.folder, command_of(i)))
    commands[i] = ('timeout 120 ip netns exec %s unshare --uts --mount sh %s'):format(host.space,
      path)
  end
  return shell.run(shell.at_once(commands))
end

-- The same command line on both hosts: its paths are each host's own.
local function command(name, more)
  return ("'%s' run %s checkpoint.save_dir=saved gen_savedir=programs --metrics %s/%s.jsonl %s")
    :format(shell.binary, job, folder, name, more)
end

local function torchrun(name, more)
  local port = launchers.port()
  return on_both(function()
    return ("OMP_NUM_THREADS=1 exec '%s/bin/torchrun' --no-python --nnodes=2 --nproc-per-node=1 "
      .. '--rdzv-backend=c10d --rdzv-endpoint=host1:%d --rdzv-id=hosts %s'):format(
      launchers.venv, port, command(name, more))
  end)
end

local function by_hand(name, more)
  local port = launchers.port()
  return on_both(function(i)
    local commands = {}
    for k = 0, 1 do
      commands[k + 1] = ('RANK=%d WORLD_SIZE=4 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 '
        .. 'MASTER_ADDR=host1 MASTER_PORT=%d %s'):format(2 * i - 2 + k, k, port,
        command(name, more))
    end
    return shell.at_once(commands)
  end)
end

local refused = make()
describe('two hosts', function()
  teardown(remove)
  local want

  local function reference()
    if not want then
      local said, code = shell.nnscaler(runs.arguments('one', ''))
      assert.equal(0, code, said)
      want = runs.rows 'one'
    end
    return want
  end

  local function host_has(i, path)
    return base.file_exists(('%s/%s'):format(hosts[i].folder, path)) ~= nil
  end

  it('train as one device does, under torchrun', function()
    if refused then return pending('no network namespaces here: ' .. refused) end
    local said, code = torchrun('tp', 'pas_policy=tp')
    assert.equal(0, code, said)
    training.near(reference(), runs.rows 'tp')
    assert.matches('Rank 0: host host1', said)
    assert.matches('Rank 1: host host2', said)
    assert.is_true(host_has(1, 'programs/GPT/gencode0.lua'))
    assert.is_true(host_has(2, 'programs/GPT/gencode1.lua'))
    assert.is_true(host_has(1, 'saved/last') and not host_has(2, 'saved'))
  end)

  it('go on from what is on the first, started by hand', function()
    if refused then return pending('no network namespaces here: ' .. refused) end
    local said, code = torchrun('two', 'pas_policy=pp stop_after_steps=5 checkpoint.save_dir=own')
    assert.equal(0, code, said)
    said, code = by_hand('two',
      'pas_policy=hybrid checkpoint.save_dir=own checkpoint.resume_from=last')
    assert.equal(0, code, said)
    assert.matches('Not every rank finds [^\n]*own/[^\n]*: rank 0 gives it to all', said)
    assert.is_false(host_has(2, 'own'))
    training.near(reference(), runs.rows 'two')
  end)
end)
