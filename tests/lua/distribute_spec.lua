--- Programs that rank 0 writes for all, on ranks with and without a shared disk.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local shell = require 'tests.cli.support.shell'

local function run(case)
  local results = comm.run_local(2, 'tests.lua.support.distribute_cases', base.json_encode(case))
  for r, text in ipairs(results) do results[r] = base.json_decode(text) end
  return results
end

describe('programs of several ranks', function()
  local folder, remove
  before_each(function() folder, remove = shell.folder() end)
  after_each(function() remove() end)

  local function there(path) return base.file_exists(folder .. '/' .. path) and true or false end

  for _, strategy in ipairs { 'code', 'no_weights', 'all' } do
    it(strategy .. ' reach ranks without a shared disk', function()
      local results = run { folder = folder, strategy = strategy }
      assert.is_nil(results[2].failed)
      assert.equal(results[1].loss, results[2].loss)
      assert.equal(folder .. '/1/Net/gencode1.lua', results[2].path)
      assert.equal(base.file_read(folder .. '/0/Net/gencode1.lua'),
        base.file_read(folder .. '/1/Net/gencode1.lua'))
      assert.is_false(there '1/Net/gencode0.lua')
    end)
  end

  it('none: are read from a shared disk', function()
    local results = run { folder = folder, strategy = 'none', shared = true }
    assert.is_nil(results[2].failed)
    assert.equal(results[1].loss, results[2].loss)
  end)

  it('none: a rank that finds none says so', function()
    assert.error_matches(function()
      run { folder = folder, strategy = 'none', raise = true }
    end, '[codegen.missing] rank 1 finds no', 1, true)
  end)

  it('all: the others get the first weights of rank 0', function()
    local same = run { folder = folder, strategy = 'all', seeds = { 1, 2 } }
    assert.same(same[1].weights['proj.weight'], same[2].weights['proj.weight'])
    assert.are_not.same(same[1].weights['fc.weight'], same[2].weights['fc.weight']) -- other rows
    local apart = run { folder = folder, strategy = 'code', seeds = { 1, 2 } }
    assert.are_not.same(apart[1].weights['proj.weight'], apart[2].weights['proj.weight'])
  end)

  it('graph: all take the graph that rank 0 has from before', function()
    run { folder = folder, reuse = 'graph' }
    local results = run { folder = folder, reuse = 'graph' }
    assert.is_nil(results[2].failed)
    assert.equal(results[1].loss, results[2].loss)
    assert.is_true(there '0/Net' and not there '1/Net/gencode0.lua')
  end)

  it('an error of rank 0 reaches all', function()
    local results = run { folder = folder, broken = true }
    assert.truthy(results[1].failed:find('[policies.mine] no way to cut it', 1, true))
    assert.truthy(results[2].failed:find(
      '[runtime.first] rank 0 failed: [policies.mine] no way to cut it', 1, true))
    assert.is_false(there '0/Net/gencode0.lua')
  end)

  it('a file of another rank that must not be reused stops all', function()
    run { folder = folder, shared = true }
    local path = folder .. '/Net/gencode1.lua'
    base.file_write(path, base.file_read(path) .. '-- mine\n', 'test')
    local results = run { folder = folder, shared = true, reuse = 'override' }
    for r = 1, 2 do
      assert.truthy(results[r].failed:find('gencode1.lua was edited by hand', 1, true))
    end
    local kept = run { folder = folder, shared = true }
    assert.is_nil(kept[2].failed)
  end)

  it('have all ranks compare every call once the user has edited one of them', function()
    local before = run { folder = folder, shared = true }
    local path = folder .. '/Net/gencode1.lua'
    base.file_write(path, base.file_read(path) .. '-- mine\n', 'test')
    local after = run { folder = folder, shared = true }
    for r = 1, 2 do
      local text = 'a program was edited by hand: ranks compare every call'
      assert.is_nil(before[r].said:find(text, 1, true))
      assert.truthy(after[r].said:find(text, 1, true))
    end
  end)

  it('compare the calls of groups that are there already, too', function()
    local core, name = require 'nnscaler._C.comm', 'nnscaler.runtime.groups'
    local current, checked, loaded = core.current, {}, package.loaded[name]
    package.loaded[name] = nil
    local groups = require(name) -- that knows of no groups
    package.loaded[name] = loaded
    core.current = function()
      return { group = function(_, _, opts)
        checked[#checked + 1] = opts.checked
        return {}
      end }
    end
    local ranks = { 0, 1 }
    local one, same = groups.group(ranks), groups.group(ranks)
    groups.compare_calls()
    local other = groups.group(ranks)
    core.current = current
    assert.equal(one, same)
    assert.are_not.equal(one, other)
    assert.same({ false, true }, checked)
  end)
end)
