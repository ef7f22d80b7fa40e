--- The store of generated programs: when a file runs, when it is written anew, and what is refused.
local base = require 'nnscaler._C.base'
local files = require 'nnscaler.generated.files'
local layers = require 'tests.lua.support.layers'
local lower = require 'nnscaler._C.lower'
local options = require 'nnscaler.options'
local records = require 'nnscaler.generated.records'
local shell = require 'tests.cli.support.shell'

local graph = layers.graph(layers.model { layers = 2 })
local other = layers.graph(layers.model { layers = 3 })
local program, second = lower.lower(graph), lower.lower(other)

describe('the store of programs', function()
  local folder, remove, opts
  before_each(function()
    folder, remove = shell.folder()
    opts = { folder = folder, model = 'Net', mode = 'training', first = true, reuse = 'auto',
      rank = 0, settings = options.settings { device = 'cpu', pas_policy = 'dp' } }
  end)
  after_each(function() remove() end)

  local function path(rank) return ('%s/Net/gencode%d.lua'):format(folder, rank or 0) end
  local function obtain(p, reuse, rank)
    opts.reuse = reuse
    local file = files.choose(p, opts, rank or 0)
    files.commit { file }
    return file
  end
  local function edit()
    local text = base.file_read(path())
    base.file_write(path(), text .. '-- mine\n', 'test')
    return text .. '-- mine\n'
  end

  for _, reuse in ipairs { 'auto', 'moo', 'match' } do
    it(reuse .. ' writes what is not there and reuses what agrees', function()
      assert.is_true(obtain(program, reuse).fresh)
      assert.truthy(base.file_exists(path()))
      local again = obtain(program, reuse)
      assert.is_false(again.fresh)
      assert.equal(base.file_read(path()), again.text)
    end)
  end

  it('match refuses another model, and says what differs', function()
    obtain(program, 'auto')
    local before = base.file_read(path())
    assert.error_matches(function() obtain(second, 'match') end,
      'codegen.match%] .-gencode0.lua differs from this run in\n  the traced model %(%x+ in the '
      .. 'file, %x+ now%)')
    assert.equal(before, base.file_read(path()))
  end)

  it('match refuses other settings, and says which', function()
    obtain(program, 'auto')
    opts.settings = options.settings({ device = 'cpu', pas_policy = 'tp' },
      { plan_ngpus = 2, runtime_ngpus = 4 })
    local ok, e = pcall(obtain, program, 'match')
    assert.is_false(ok)
    assert.truthy(tostring(e):find(
      'compute_config.plan_ngpus: 1 in the file, 2 now\n  compute_config.runtime_ngpus: 1 in the '
      .. 'file, 4 now\n  pas_policy: dp in the file, tp now', 1, true), tostring(e))
  end)

  it('moo writes a stale file anew', function()
    obtain(program, 'moo')
    assert.is_true(obtain(second, 'moo').fresh)
    assert.equal(second:lua(opts.settings), base.file_read(path()))
  end)

  it('override writes anew what agrees too', function()
    obtain(program, 'auto')
    assert.is_true(obtain(program, 'override').fresh)
  end)

  it('an edited file runs while it agrees, and is never overwritten', function()
    obtain(program, 'auto')
    local edited = edit()
    for _, reuse in ipairs { 'auto', 'moo', 'match' } do
      assert.equal(edited, obtain(program, reuse).text)
    end
    for _, reuse in ipairs { 'override', 'graph' } do
      assert.error_matches(function() obtain(program, reuse) end,
        'codegen.edited%] .-gencode0.lua was edited by hand; gen_reuse=' .. reuse
        .. ' would overwrite it')
    end
    assert.error_matches(function() obtain(second, 'moo') end,
      'codegen.edited%] .-was edited by hand, but differs from this run in\n  the traced model')
    assert.equal(edited, base.file_read(path()))
  end)

  it('refuses a file that it has not written', function()
    base.make_folder(folder .. '/Net')
    base.file_write(path(), 'return {}\n', 'test')
    assert.error_matches(function() obtain(program, 'auto') end,
      'codegen.header%] .-gencode0.lua has no line')
  end)

  it('replaces no file of several before all can be replaced', function()
    local one, two = files.choose(program, opts, 0), files.choose(program, opts, 1)
    files.commit { one, two }
    local before = base.file_read(path(0))
    base.make_folder(path(1) .. '.new') -- the second cannot be written
    opts.reuse = 'override'
    local a, b = files.choose(second, opts, 0), files.choose(second, opts, 1)
    assert.error(function() files.commit { a, b } end)
    assert.equal(before, base.file_read(path(0)))
  end)

  it('tells a rank without its file that the disk is not shared', function()
    assert.error_matches(function() files.expect(opts, 3, graph:hash()) end,
      'codegen.missing%] rank 3 finds no .-gencode3.lua, which rank 0 wrote')
    obtain(program, 'auto', 3)
    assert.equal(path(3), files.expect(opts, 3, graph:hash()))
  end)

  it('keeps a text that rank 0 has sent, once', function()
    local text = program:lua(opts.settings)
    local file = files.received(program, opts, 2, text)
    assert.is_true(file.fresh)
    files.commit { file }
    assert.equal(text, base.file_read(path(2)))
    assert.is_false(files.received(program, opts, 2, text).fresh)
  end)

  it('graph takes the traced graph of before for the same shapes and settings', function()
    opts.reuse = 'graph'
    local traces = 0
    local function make()
      traces = traces + 1
      return graph
    end
    local function obtained(shapes)
      local found, record = records.graph(opts, shapes, make)
      files.commit({}, { record })
      return found
    end
    local shapes = 'training {x=int64[2,8], y=int64[2,8]}'
    local first = obtained(shapes)
    local again = obtained(shapes)
    assert.equal(1, traces)
    assert.equal(first:hash(), again:hash())
    assert.equal(lower.lower(first):lua(), lower.lower(again):lua())
    obtained 'training {x=int64[4,8], y=int64[4,8]}'
    assert.equal(2, traces)
    opts.settings = options.settings { device = 'cpu', pas_policy = 'tp' }
    obtained(shapes)
    assert.equal(3, traces)
    opts.reuse = 'auto' -- an edited model is traced again
    obtained(shapes)
    assert.equal(4, traces)
  end)

  it('gives the same settings line for the same job', function()
    local job = { device = 'cpu', pas_config = { b = 1, a = { 2, 3 } },
      model = { args = { w = 4 } } }
    assert.equal(options.settings(job), options.settings(job))
    assert.is_nil(options.settings(job):find '\n')
  end)
end)
