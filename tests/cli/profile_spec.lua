--- `nnscaler profile`: what it writes prices plans of the same job by what was measured, and a
--- profile that is not of this machine is said and not used.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local job = 'recipes/quickstart.lua micro_batch_size=8 threads=1'

local function with_cache(arguments)
  return shell.nnscaler(arguments .. ' 2>&1', ('XDG_CACHE_HOME=%s'):format(folder))
end

local function profile() return base.json_decode(base.file_read(folder .. '/nnscaler/profile.json',
  'test')) end

describe('nnscaler profile', function()
  teardown(remove)

  it('measures what a plan on this machine needs and nobody has measured', function()
    local out, code = with_cache('plan ' .. job .. ' --world 2 pas_policy=dp --hardware measured')
    assert.equal(0, code, out)
    assert.matches('Measuring this machine and calls of the job on %d rank%(s%), at most 20 s: '
      .. '%[cost.profile%] this machine has no profile', out)
    for device = 0, 1 do
      assert.matches(('device %d finished profiling %%d+ calls'):format(device), out)
    end
    assert.is_true(tonumber(out:match '(%d+) %% modelled') <= 10, out)
    out = with_cache('plan ' .. job .. ' --world 2 pas_policy=dp --hardware measured')
    assert.no.matches('Measuring', out)
    out, code = with_cache('run ' .. job .. ' -n 2 compute_config.plan_ngpus=2 '
      .. 'pas_config.hardware=measured pas_config.re_profile=true max_train_steps=1 '
      .. 'checkpoint.no_save=true gen_savedir=' .. folder .. '/found')
    assert.equal(0, code, out)
    assert.matches('at most 20 s: pas_config.re_profile', out)
    assert.matches('Report of the plan:\nconfiguration: policy autodist', out)
  end)

  it('names what it could not measure, and says what is used instead', function()
    local out, code = shell.nnscaler('plan tests/cli/jobs/broken_call.lua --world 1 '
      .. 'pas_policy=dp --hardware measured 2>&1', ('XDG_CACHE_HOME=%s/other'):format(folder))
    assert.equal(0, code, out)
    assert.matches('aten::embedding', out)
    assert.matches('could not be measured .- figures are modelled', out)
    assert.matches('cost sources: calls modelled, links modelled', out)
  end)

  it('measures calls of a job and links on two ranks', function()
    local out, code = with_cache('profile ' .. job .. ' -n 2 pas_policy=tp --seconds 1')
    assert.equal(0, code, out)
    assert.matches('2 rank%(s%) of 1 thread%(s%): [%d.]+ GFLOP/s', out)
    assert.matches('%d+ distinct calls measured, a step takes', out)
    local found = profile()
    assert.equal(2, found.machine.ranks)
    local kinds = {}
    for _, link in ipairs(found.links) do kinds[link.collective] = true end
    for _, kind in ipairs { 'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'send' } do
      assert.is_true(kinds[kind])
    end
    local linear = false
    for _, call in ipairs(found.calls) do
      assert.is_true(call.seconds > 0)
      linear = linear or call.call:find('^aten::linear%(float32%[') ~= nil
    end
    assert.is_true(linear)
    assert.equal('adamw', found.steps[1].optimizer)
  end)

  it('keeps which kernel is faster for each product, and programs take it', function()
    local path = folder .. '/nnscaler/kernels.json'
    local kept = base.json_decode(base.file_read(path, 'test'))
    local forward = {}
    for _, product in ipairs(kept.products) do
      assert.equal(1, product.threads)
      assert.is_true(product.aten_s > 0 and product.tiles_s > 0)
      if product.call:find '^aten::linear float32 ' then forward[#forward + 1] = product end
    end
    assert.is_true(#forward > 0)
    local text = base.file_read(path, 'test')
    local function compiled(changes)
      local out, code = with_cache(('compile %s compute_config.runtime_ngpus=2 pas_policy=tp '
        .. 'gen_savedir=%s/kernels %s')
        :format(job, folder, changes))
      assert.equal(0, code, out)
      return base.file_read(out:match '%S+gencode0.lua', 'test'), out
    end
    local function choose(kernel)
      base.file_write(path, (text:gsub('"kernel":"%a+"', ('"kernel":"%s"'):format(kernel))), 'test')
    end
    choose 'tiles'
    local tiled = compiled 'gen_reuse=override'
    assert.matches('nnscaler.tiled_linear%(', tiled)
    choose 'aten'
    assert.equal(tiled, (compiled 'gen_reuse=match'))
    assert.is_nil(compiled 'gen_reuse=override':find('tiled', 1, true))
    choose 'tiles'
    assert.is_nil(compiled 'forbid_kernels=tiles':find('tiled_linear(', 1, true))
    base.file_write(path, '{', 'test')
    local _, out = compiled 'gen_reuse=override'
    assert.matches("kernels.json' are not used: it is damaged; `nnscaler profile JOB` measures "
      .. 'anew', out)
    base.file_write(path, text, 'test')
  end)

  it('prices a plan by them, and says where figures come from', function()
    local out, code = with_cache('plan ' .. job .. ' --world 2 pas_policy=tp --hardware measured')
    assert.equal(0, code, out)
    assert.matches('cost sources: of the seconds of calls and links %d+ %% measured', out)
    assert.matches('hardware measured %(', out)
    assert.matches('aten::linear in layers.%*: [%d.]+ [mu]?s %(forward [%d.]+ [mu]?s, measured%)',
      out)
    assert.is_true(tonumber(out:match '(%d+) %% modelled') <= 10, out)
  end)

  it('serves policies that search', function()
    for _, policy in ipairs { 'autodist', 'rannc' } do
      local out, code = with_cache(('plan %s --world 2 pas_policy=%s pas_config.hardware=measured')
        :format(job, policy))
      assert.equal(0, code, out)
      assert.matches('hardware measured', out)
    end
  end)

  it('is told beside what a run takes, per stage', function()
    local out, code = with_cache('run recipes/quickstart.lua -n 2 pas_policy=pp '
      .. 'compute_config.plan_ngpus=2 max_train_steps=20 checkpoint.no_save=true '
      .. 'gen_savedir=' .. folder .. '/gen')
    assert.equal(0, code, out)
    assert.matches('Predicted for measured %(.+%)'
      .. ' and measured over 18 steps: a step [%d.e-]+ s and '
      .. '[%d.e-]+ s %([+-][%d.]+ %%%)', out)
    for stage = 0, 1 do
      assert.matches(('stage %d %%(rank %d%%): waiting and communication [%%d.]+ [mu]?s and '
        .. '[%%d.]+ [mu]?s, peak [%%d.]+ K?B and [%%d.]+ K?B'):format(stage, stage), out)
    end
  end)

  it('is said and measured anew on another host, under another version, or damaged', function()
    local path = folder .. '/nnscaler/profile.json'
    local text = base.file_read(path, 'test')
    local function said(what, by)
      base.file_write(path, (text:gsub(what, by, 1)), 'test')
      local out, code = with_cache('plan ' .. job .. ' --world 2 --hardware measured')
      assert.equal(0, code, out)
      assert.matches('device 0 finished profiling', out)
      return out
    end
    assert.matches("is of another host, 'elsewhere'", said('"host":"[^"]*"',
      '"host":"elsewhere"'))
    assert.matches("is of another version, '0.0.1'", said('"version": "[^"]*"',
      '"version": "0.0.1"'))
    assert.matches('Measuring this machine .-: %[cost.profile%]', said('"seconds":', '"second":'))
  end)

  it('refuses what it cannot measure', function()
    local out, code = with_cache('profile ' .. job .. ' eager=true')
    assert.equal(2, code)
    assert.matches('eager=true has no program', out)
    out, code = with_cache 'profile --out profile.txt'
    assert.equal(2, code)
    assert.matches('expected a name that ends in .json', out)
  end)
end)
