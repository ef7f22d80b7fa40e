--- `nnscaler compile` for several ranks: one process writes all files, a run uses them, also from
--- another folder; and what it takes for a model of 8 billion parameters.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local tiny = 'recipes/nanogpt.lua preset=tiny threads=1 pas_policy=tp max_val_steps=1'
local two = 'compute_config.runtime_ngpus=2'

local function train(gen, more)
  return shell.nnscaler(('run %s -n 2 comm.backend=local stop_after_steps=1 gen_savedir=%s/%s '
    .. 'checkpoint.save_dir=%s/%s.saved %s'):format(tiny, folder, gen, folder, gen, more or ''))
end

describe('nnscaler compile for two ranks', function()
  setup(function()
    shell.nnscaler(('compile %s %s gen_savedir=%s/gen'):format(tiny, two, folder))
  end)

  it('writes the files of both, the same bytes in every process', function()
    local said, code = shell.nnscaler(('compile %s %s gen_savedir=%s/again --log-level error')
      :format(tiny, two, folder))
    assert.equal(0, code, said)
    local want = {}
    for _, name in ipairs { 'gencode0.lua', 'gencode1.lua', 'gencode0.eval.lua',
      'gencode1.eval.lua' } do
      want[#want + 1] = ('%s/again/GPT/%s\n'):format(folder, name)
      assert.equal(base.file_read(('%s/again/GPT/%s'):format(folder, name)),
        base.file_read(('%s/gen/GPT/%s'):format(folder, name)))
    end
    assert.equal(table.concat(want), said)
  end)

  it('gives a run what it runs, from another folder too', function()
    shell.run(('cp -r %s/gen %s/moved'):format(folder, folder))
    local said, code = train('moved', 'gen_reuse=match')
    assert.equal(0, code, said)
    assert.truthy(said:find('moved/GPT/gencode0.lua is up to date', 1, true), said)
    assert.is_nil(said:find('written to', 1, true), said)
  end)

  it('gives the first difference to a run with other settings', function()
    local said, code = train('gen', 'gen_reuse=match compute_config.plan_ngpus=1 pas_policy=dp')
    assert.equal(1, code)
    assert.truthy(said:find('compute_config.plan_ngpus: 2 in the file, 1 now', 1, true), said)
  end)

  it('leaves edited files alone, and says that they run', function()
    shell.run(('cp -r %s/gen %s/mine'):format(folder, folder))
    local path = folder .. '/mine/GPT/gencode1.lua'
    local edited = base.file_read(path) .. '-- mine\n'
    base.file_write(path, edited, 'test')
    local said, code = train('mine')
    assert.equal(0, code, said)
    assert.truthy(said:find('gencode1.lua was edited by hand: it runs as it is', 1, true), said)
    said, code = shell.nnscaler(('compile %s %s gen_savedir=%s/mine gen_reuse=override')
      :format(tiny, two, folder))
    assert.equal(1, code)
    assert.truthy(said:find('gencode1.lua was edited by hand; gen_reuse=override would overwrite '
      .. 'it', 1, true), said)
    assert.equal(edited, base.file_read(path))
  end)

  it('reports what rests in shards at each level of ZeRO', function()
    -- AdamW keeps two numbers of each parameter.
    local function bytes(text)
      local number, unit = text:match '^([%d.]+) (.?B)$'
      return tonumber(number) * ({ B = 1, KB = 2 ^ 10, MB = 2 ^ 20 })[unit]
    end
    local shares = { { 1, 1, 1 }, { 1, 1, 4 }, { 1, 4, 4 }, { 4, 4, 4 } } -- ranks that share each
    local all
    for zero, share in ipairs(shares) do
      local said = shell.nnscaler(('compile recipes/nanogpt.lua preset=tiny --report '
        .. '--log-level error compute_config.plan_ngpus=1 compute_config.runtime_ngpus=4 '
        .. 'compute_config.use_zero=%d gen_savedir=%s/zero'):format(zero - 1, folder))
      local ranks = 0
      for line in said:gmatch '[^\n]+' do
        local w, g, o = line:match '^ +%d+ +([%d.]+ .?B) +([%d.]+ .?B) +([%d.]+ .?B)'
        if w then
          ranks = ranks + 1
          all = all or bytes(w)
          for i, text in ipairs { w, g, o } do
            local want = all * (i == 3 and 2 or 1) / share[i]
            assert.is_true(math.abs(bytes(text) / want - 1) <= 0.03, line)
          end
        end
      end
      assert.equal(4, ranks, said)
    end
  end)

  it('reports memory of each rank', function()
    local said = shell.nnscaler(('compile %s %s gen_savedir=%s/gen --report --log-level error')
      :format(tiny, two, folder))
    assert.truthy(said:find('\n *rank +weights +gradients +optimizer +saved +in flight +peak '
      .. '+forward +backward +step\n *0 +%d'), said)
  end)

  it('refuses what it cannot write', function()
    local said, code = shell.nnscaler(('compile %s %s --rank 2'):format(tiny, two))
    assert.truthy(said:find('[compile.rank] --rank is 2; expected 0 to 1', 1, true), said)
    assert.equal(2, code)
    said, code = shell.nnscaler(('compile %s compute_config.plan_ngpus=2 '
      .. 'compute_config.runtime_ngpus=3'):format(tiny))
    assert.truthy(said:find('expected a multiple of plan_ngpus = 2', 1, true), said)
    assert.equal(2, code)
  end)
end)

describe('what programs communicate', function()
  -- Four layers of four all-reduces, each of 4 × 32 × 64 floats; the vocabulary does not divide.
  local job = 'recipes/nanogpt.lua preset=tiny threads=1 pas_policy=megatron max_val_steps=1 '
    .. 'grad_accumulation_steps=3 ' .. two
  local told = '16 adapters, 16 of them fused pairs; in a step of 3 micro%-batch%(es%) '
    .. '48 all_reduce, 1%.5 MB sent'

  it('is told by compile --report, with the files that were written or there', function()
    for _, files in ipairs { '4 written, 0 reused', '0 written, 4 reused' } do
      local said, code = shell.nnscaler(('compile %s gen_savedir=%s/report --report'):format(job,
        folder))
      assert.equal(0, code, said)
      for rank = 0, 1 do assert.matches(('\nrank %d: %s\n'):format(rank, told), said) end
      assert.matches('\nfiles: ' .. files .. '\n', said)
    end
  end)

  it('is told by a run', function()
    local said, code = shell.nnscaler(('run %s -n 2 comm.backend=local stop_after_steps=1 '
      .. 'gen_savedir=%s/report checkpoint.no_save=true'):format(job, folder))
    assert.equal(0, code, said)
    assert.matches('Program of rank 0: ' .. told, said)
    assert.matches('report/GPT/gencode0.lua is up to date', said)
  end)
end)

-- Compiles in a process of its own; returns its seconds of CPU, and what it said.
local function seconds(name, more)
  local said, code = shell.run(("bash -c \"time '%s' compile recipes/llama3.lua preset=8b "
    .. "pas_policy=tests/bench/layers_policy.lua gen_savedir=%s/%s %s\""):format(shell.binary,
    folder, name, more))
  assert.equal(0, code, said)
  local function of(what)
    local minutes, rest = said:match(what .. '%s+(%d+)m([%d.]+)s')
    return minutes * 60 + rest
  end
  return of 'user' + of 'sys', said
end

describe('LLaMA-8B', function()
  it('is compiled for 8 ranks within 3 s, at most 300 lines of 100 columns each and 40 of the step',
    function()
    local cpu = seconds('8b', 'compute_config.plan_ngpus=8 pas_config.pipeline_nstages=2 '
      .. 'compute_config.runtime_ngpus=8')
    for rank = 0, 7 do
      local text = base.file_read(('%s/8b/Llama/gencode%d.lua'):format(folder, rank))
      local lines, step, in_step = 0, 0, false -- without the step, and of it
      for line in text:gmatch '([^\n]*)\n' do
        in_step = in_step or line:find '^%-%- The step of an optimizer' ~= nil
        in_step = in_step and not line:find '^return '
        if in_step then step = step + 1 else lines = lines + 1 end
        assert.is_true(#line:gsub('[\128-\191]', '') <= 100, line)
      end
      assert.is_true(lines <= 300, ('rank %d: %d lines'):format(rank, lines))
      assert.is_true(step > 0 and step <= 40, ('rank %d: %d lines of the step'):format(rank, step))
    end
    local start = base.clock()
    local program = assert(loadfile(folder .. '/8b/Llama/gencode3.lua'))()
    assert.equal('function', type(program.forward))
    cpu = cpu + base.clock() - start
    assert.is_true(cpu <= 3, ('%.2f s'):format(cpu))
  end)

  local many = 'compute_config.plan_ngpus=128 pas_config.pipeline_nstages=16 '
    .. 'compute_config.runtime_ngpus=1024'

  it('is compiled for all of 1,024 ranks within 15 s and 1 GB', function()
    local cpu, said = seconds('1024', many)
    local most, unit = said:match '1024 program%(s%) of training in [%d.]+ s, ([%d.]+) (%a+) of'
    assert.equal('MB', unit, said)
    assert.is_true(tonumber(most) <= 1000, most)
    assert.is_true(cpu <= 15, ('%.2f s'):format(cpu))
    assert.truthy(base.file_exists(folder .. '/1024/Llama/gencode1023.lua'))
  end)

  it('is compiled for any one of them within 3 s, to the same bytes', function()
    local cpu = seconds('one', many .. ' --rank 1001')
    assert.is_true(cpu <= 3, ('%.2f s'):format(cpu))
    assert.equal(base.file_read(folder .. '/1024/Llama/gencode1001.lua'),
      base.file_read(folder .. '/one/Llama/gencode1001.lua'))
    assert.falsy(base.file_exists(folder .. '/one/Llama/gencode1000.lua'))
  end)
end)

describe('the trace of Llama 3 with 405 billion parameters', function()
  it('takes at most 10 s of CPU and 1.5 GB', function()
    base.file_write(folder .. '/trace.lua', [[
local T = require 'nnscaler.tensor'
local Llama = require 'nnscaler.models.llama'
local x = T.zeros({ 1, 8192 }, { dtype = 'int64' })
local start = os.clock()
local graph = require 'nnscaler.trace'(Llama(Llama.configs['llama3-405b']), { x, x },
  { training = true })
local seconds, kilobytes = os.clock() - start, nil
for line in io.lines '/proc/self/status' do
  kilobytes = kilobytes or line:match '^VmHWM:%s*(%d+)'
end
print(('%d calls %.3f seconds %d kilobytes'):format(#graph:nodes(), seconds, kilobytes))
]])
    local said, code = shell.nnscaler(folder .. '/trace.lua')
    assert.equal(0, code, said)
    local calls, took, kilobytes = said:match '(%d+) calls ([%d.]+) seconds (%d+) kilobytes'
    assert.is_true(tonumber(calls) > 4000, said)
    assert.is_true(tonumber(took) <= 10, said)
    assert.is_true(tonumber(kilobytes) <= 1.5e6, said)
  end)
end)
