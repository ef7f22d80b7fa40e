-- What people lost without a word: each is kept, or said.
local base = require 'nnscaler._C.base'
local cases = require 'tests.cli.support.cases'
local shell = require 'tests.cli.support.shell'

local case, remove = cases.new()
teardown(remove)
case.write('job.yaml', cases.yaml)
-- A job that tests change.
case.write('two.lua', [[
  local nnscaler = require 'nnscaler'
  return { model = { type = 'mlp', args = { sizes = { 4, 2 } } },
    dataset = nnscaler.data.random_samples { size = 64, width = 4, classes = 2 },
    max_train_steps = 1, optimizer = 'sgd', threads = 1, gen_savedir = 'g',
    checkpoint = { save_dir = 'both' } }]])

describe('silent losses', function()
  it('metrics_disk_full: a row that cannot be written ends the run', function()
    for _, how in ipairs { '--metrics /dev/full',
      "'log=[{ type: csv, args: { path: /dev/full } }]'" } do
      local said, code = case.run('job.yaml ' .. how)
      assert.equal(1, code, said)
      assert.matches("[trainer.metrics] cannot write '/dev/full': No space left on device", said, 1,
        true)
    end
    assert.equal('device', base.file_exists '/dev/full') -- it was not replaced by a file
  end)

  it('metrics_disk_full: a full file system is found at the row that does not fit', function()
    local mounted = shell.run(("mkdir %s/small && mount -t tmpfs -o size=16k none %s/small")
      :format(case.folder, case.folder))
    if mounted ~= '' then pending('no right to mount: ' .. mounted) end
    finally(function() shell.run(('umount %s/small'):format(case.folder)) end)
    local said, code = case.run('job.yaml --metrics small/m.jsonl')
    assert.equal(1, code, said)
    assert.matches("cannot write 'small/m.jsonl': No space left on device", said, 1, true)
  end)

  it('output that stdout does not take ends with exit code 1', function()
    for _, command in ipairs { 'job.yaml --print-config', '--help' } do
      local said, code = case.run(command .. ' > /dev/full')
      assert.equal(1, code)
      assert.matches('stdout: No space left on device', said)
    end
  end)

  it('a link to a metrics file keeps leading to it', function()
    shell.run(("mkdir -p %s/disk && ln -s disk/m.jsonl %s/link.jsonl && touch %s/disk/m.jsonl")
      :format(case.folder, case.folder, case.folder))
    local _, code = case.run('job.yaml max_train_steps=2 --metrics link.jsonl')
    assert.equal(0, code)
    assert.equal(2, #cases.rows(case.folder .. '/disk/m.jsonl'))
  end)

  local recipe = [[
local nnscaler = require 'nnscaler'
local p = nnscaler.params {
  value = { '0.5', 'a Lua expression' }, called = { 'accuracy', 'its name' },
}
return {
  model = { type = 'mlp', args = { sizes = { 4, 8, 2 } } },
  dataset = nnscaler.data.random_samples { size = 64, width = 4, classes = 2 },
  micro_batch_size = 4, max_train_steps = 3, optimizer = 'sgd', threads = 1, gen_savedir = 'g',
  checkpoint = { no_save = true },
  log = { { type = 'csv', args = { path = 'm.csv' } },
    { type = 'jsonl', args = { path = 'm.jsonl' } } },
  hook = { before_log_train_metrics = function(t, metrics)
    if t.step > 1 then metrics[p.called] = loadstring('return ' .. p.value)() end
  end },
}
]]

  it('csv_drops_metrics: a metric of a hook has a column, empty in rows before', function()
    case.write('csv.lua', recipe)
    local said, code = case.run 'csv.lua'
    assert.equal(0, code, said)
    local lines = {}
    for line in base.file_read(case.folder .. '/m.csv'):gmatch '[^\n]+' do
      local cells = {}
      for cell in (line .. ','):gmatch '([^,]*),' do cells[#cells + 1] = cell end
      lines[#lines + 1] = cells
    end
    local at = {}
    for i, name in ipairs(lines[1]) do at[name] = i end
    for i, row in ipairs(cases.rows(case.folder .. '/m.jsonl')) do
      assert.equal(#lines[1], #lines[i + 1])
      for name, value in pairs(row) do
        assert.equal(value, tonumber(lines[i + 1][at[name]]), name)
      end
      assert.equal(i > 1 and '0.5' or '', lines[i + 1][at.accuracy])
    end
    assert.equal(4, #lines)
  end)

  for _, wrong in ipairs {
    { "('good')", "metric 'accuracy' is the text 'good'; expected a number" },
    { 'true', "metric 'accuracy' is a boolean; expected a number" },
    { '({1})', "metric 'accuracy' is a table; expected a number" },
    { "('bad')\" \"called=train_loss", "metric 'train_loss' is the text 'bad'; expected a number" },
    { '0.5" "called=a,b', "a metric has the name 'a,b'; expected a text without commas" },
  } do
    it('csv_drops_metrics: what is not a number by a name is refused: ' .. wrong[1], function()
      case.write('csv.lua', recipe)
      local said, code = case.run(('csv.lua "value=%s"'):format(wrong[1]))
      assert.equal(1, code)
      assert.matches('[trainer.metrics] ' .. wrong[2], said, 1, true)
      assert.is_nil(said:find('bad argument', 1, true), said)
    end)
  end

  it('two runs one after the other in one save_dir: the second says what it replaces', function()
    local job = 'job.yaml max_train_steps=2 checkpoint.no_save=false checkpoint.save_dir=ck'
    local said, code = case.run(job)
    assert.equal(0, code, said)
    assert.is_nil(said:find('earlier run', 1, true))
    said, code = case.run(job .. ' checkpoint.resume_from=last max_train_steps=4')
    assert.equal(0, code, said)
    assert.is_nil(said:find('earlier run', 1, true))
    said, code = case.run(job)
    assert.equal(0, code, said)
    assert.matches("WARNING | nnscaler.trainer | 'ck' has 2 checkpoint(s) of an earlier run, the "
      .. 'last after 4 steps', said, 1, true)
  end)

  it('two runs at one time in one save_dir: the second is refused before its first step', function()
    case.write('wait.lua', [[
      local job = dofile 'two.lua'
      job.hook = { on_step_end = function() os.execute 'touch started; sleep 1' end }
      job.max_train_steps = 100
      return job]])
    local said = shell.run(("cd %s; timeout 60 '%s' run wait.lua >/dev/null 2>&1 & first=$!; "
      .. "cd %s; for i in $(seq 200); do [ -e started ] && break; sleep 0.1; done; "
      .. "timeout 60 '%s' run two.lua; echo code=$?; kill $first; wait $first; "
      .. "timeout 60 '%s' run two.lua 2>/dev/null; echo then=$?"):format(case.folder, shell.binary,
      case.folder, shell.binary, shell.binary))
    assert.matches("[checkpoint.save_dir] another run writes to 'both'", said, 1, true)
    assert.matches('code=2', said)
    assert.matches('then=0', said) -- the end of the first run has freed it
  end)

  it('a save_dir where nothing can be written is refused before the first step', function()
    case.write('file', '')
    local said, code = case.run('job.yaml checkpoint.no_save=false checkpoint.save_dir=file/ck')
    assert.equal(1, code)
    assert.matches("[checkpoint.save] cannot make the folder 'file/ck'", said, 1, true)
    assert.is_nil(said:find('Training...', 1, true))
  end)
end)

describe('unknown keys of pas_config', function()
  for _, wrong in ipairs {
    { 'hybrid', 'pipline_nstages=4', "policy 'hybrid' has no key 'pas_config.pipline_nstages'",
      "did you mean 'pas_config.pipeline_nstages'?" },
    { 'megatron', 'sequence_paralel=true', "has no key 'pas_config.sequence_paralel'",
      "did you mean 'pas_config.sequence_parallel'?" },
    { 'tp', 'replicated=2', "'pas_config.replicated' is 2; expected a number from 0 to 1" },
    { 'tp', 'uneven=yes', "'pas_config.uneven' is the text 'yes'; expected true or false" },
    { 'dp', 'seed=1', "policy 'dp' has no key 'pas_config.seed'; its keys: offload_modules, "
      .. 'pipeline_nmicros, recompute_modules, strict' },
    { 'tp', 'recompute_modules=layers.9', "no module that makes calls matches 'layers.9'",
      'did you mean' },
    { 'hybrid', 'pipeline_nstages=many', "'pas_config.pipeline_nstages' is the text 'many'; "
      .. "expected an integer of at least 1, or 'auto'" },
    { 'hybrid', 'pipeline_chunks=0', "'pas_config.pipeline_chunks' is 0; expected an integer of at "
      .. 'least 1' },
    { 'pp', 'pipeline_nstages=3', 'pas_config.pipeline_nstages is 3, but plan_ngpus is 2' },
  } do
    it(('are refused: %s %s'):format(wrong[1], wrong[2]), function()
      case.refused({ unpack(wrong, 3) }, ('job.yaml comm.backend=local -n 2 pas_policy=%s '
        .. 'pas_config.%s'):format(wrong[1], wrong[2]))
    end)
  end

  it('are refused on one device too, where no policy runs', function()
    case.refused({ "policy 'autodist' has no key 'pas_config.sede'" }, 'job.yaml pas_config.sede=1')
    case.refused({ "policy 'autodist' has no key 'pas_config.sede'" },
      'job.yaml pas_config.sede=1 eager=true')
  end)

  it('belong to the policy of a recipe, which may take any', function()
    case.write('own.lua', [[
      local job = dofile 'two.lua'
      job.checkpoint, job.comm = { no_save = true }, { backend = 'local' }
      job.pas_config = { mine = { 1, 2 } }
      job.pas_policy = function(graph, cfg) assert(cfg.pas_config.mine[2] == 2)
        graph:replicate_rest() end
      return job]])
    local said, code = case.run 'own.lua'
    assert.equal(0, code, said)
  end)
end)

describe('tables of policies', function()
  for _, wrong in ipairs {
    { "graph:weights 'shraded'",
      "'shraded' is not a home of weights; expected replicated or sharded",
      "did you mean 'sharded'?" },
    { 'graph:partition(graph:nodes()[1], { input = 0, dimm = 0 }, 2)', "has no key 'dimm'",
      "did you mean 'dim'?" },
    { 'graph:partition(graph:nodes()[1], { input = 0 }, 2)', 'names no dim' },
    { "graph:partition(graph:nodes()[1], { input = 'x', dim = 0 }, 2)",
      "'input' is the text 'x'; expected an integer of at least 0" },
    { 'graph:partition(graph:nodes()[1], 0, 2)', 'expected a table with the keys dim, in' },
    { 'graph:partition(nil, { input = 0, dim = 0 }, 2)', 'a nil is not an operator of this graph' },
    { 'graph:assign(graph:nodes()[1], 0)', 'devices is a number; expected a list' },
    { 'graph:stage(graph:nodes()[2], { { 0 }, { 1 } })', 'expected one list a stage' },
    { 'graph:stage({ graph:nodes()[2] }, { 0, 1 })', 'the devices of a stage is a number' },
    { 'graph:recompute(3)', 'what is given is a number; expected a list' },
    { "graph:schedule { naem = 'gpipe' }", "has no key 'naem'" },
    { 'graph:hook(graph:nodes()[1], { befor = 1 })', "has no key 'befor'" },
    { "graph:select { modul = 'h.*' }", "has no key 'modul'" },
    { 'return { { node = graph:nodes()[1], partition = { dimm = 0, input = 0, parts = 2 } } }',
      'has no entry' },
    { 'return one(function(e) e.partition = { dimm = 0, parts = 2 } end)', "has no key 'dimm'" },
    { 'return one(function(e) e.devices = 1 end)', "'devices' is a number; expected a table" },
    { 'return one(function(e) e.stag = 1 end)', "unknown key 'stag'", "did you mean 'stage'?" },
  } do
    it('name what is wrong: ' .. wrong[1], function()
      case.write('act.lua', ([[
        local job = dofile 'two.lua'
        job.checkpoint, job.comm = { no_save = true }, { backend = 'local' }
        job.pas_policy = function(graph, cfg)
          local function one(change)
            local list = {}
            for i, node in ipairs(graph:nodes()) do list[i] = { node = node } end
            change(list[1])
            return list
          end
          do %s end
          return one(function() end)
        end
        return job]]):format(wrong[1]))
      local said, code = case.run 'act.lua -n 2'
      assert.is_true(code == 1 or code == 2)
      for i = 2, #wrong do assert.matches(wrong[i], said, 1, true) end
      assert.is_nil(said:find('bad argument', 1, true), said)
      assert.is_nil(said:find('attempt to', 1, true), said)
    end)
  end
end)

describe('megatron names the layers that it leaves whole, with numbers', function()
  local function plan(arguments)
    local said, code = shell.run(("cd '%s' && '%s' plan %s pas_policy=megatron"):format(case.folder,
      shell.binary, arguments))
    assert.equal(0, code, said)
    return said
  end
  local here = shell.run('pwd'):match '[^\n]+'

  it('fewer heads than devices', function()
    local said = plan(here .. '/recipes/llama3.lua preset=tiny --world 8')
    assert.matches('4 ranks hold alike each part of linear layers that cannot be cut further: '
      .. 'model.layers.*.self_attn.q_proj, model.layers.*.self_attn.k_proj, '
      .. 'model.layers.*.self_attn.v_proj: ', said, 1, true)
    assert.matches("'c' is 4 long, which 8 does not divide", said, 1, true)
    said = plan(here .. '/recipes/llama3.lua preset=tiny --world 4')
    assert.matches('2 ranks hold alike each part of linear layers that cannot be cut further: '
      .. 'model.layers.*.self_attn.k_proj, model.layers.*.self_attn.v_proj: ', said, 1, true)
    assert.is_nil(said:find('self_attn.q_proj, model', 1, true))
    said = plan(here .. '/recipes/llama3.lua preset=tiny --world 2')
    assert.is_nil(said:find '[^\n]*cannot be cut[^\n]*self_attn')
  end)

  it('a rope key that all heads share', function()
    case.write('mla.lua', [[
local nnscaler = require 'nnscaler'
local nn, T, F = nnscaler.nn, nnscaler.tensor, nnscaler.functional
local Net = nn.class 'Net'
function Net:init()
  self.q, self.k, self.rope = nn.Linear(16, 24), nn.Linear(16, 16), nn.Linear(16, 2)
  self.v, self.o = nn.Linear(16, 16), nn.Linear(16, 16)
  self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
end
function Net:forward(s)
  local x = s.x:unsqueeze(1):expand { -1, 3, -1 }
  local b = x.shape[1]
  local function heads(y, h) return y:view { b, 3, h, -1 } end
  local k = T.cat({ heads(self.k(x), 4), heads(self.rope(x), 1):expand { b, 3, 4, 2 } }, -1)
  local y = F.scaled_dot_product_attention(heads(self.q(x), 4):transpose(1, 2),
    k:transpose(1, 2), heads(self.v(x), 4):transpose(1, 2))
  x = x + self.o(y:transpose(1, 2):reshape { b, 3, 16 })
  x = x + self.down(self.up(x):relu())
  return x:square():mean()
end
return { model = function() return Net() end,
  dataset = nnscaler.data.random_samples { size = 8, width = 16, classes = 2 },
  micro_batch_size = 2, max_train_steps = 1, optimizer = 'sgd', threads = 1,
  checkpoint = { no_save = true } }]])
    local said = plan 'mla.lua --world 2'
    assert.matches('cannot be cut into 2 parts: rope: aten::cat of the model reads '
      .. 'operand 1, [2, 3, 4, 2], which is not cut into 2 parts with the others', said, 1, true)
  end)

  it('where nothing can be cut at all', function()
    local said, code = shell.run(("cd '%s' && '%s' plan job.yaml pas_policy=megatron --world 3")
      :format(case.folder, shell.binary))
    assert.equal(1, code)
    assert.matches("'n' is 8 long, which 3 does not divide", said, 1, true)
  end)
end)
