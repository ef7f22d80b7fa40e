--- `nnscaler plan` on described hardware: autodist beside the plans that people write by hand, and
--- what it refuses.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local job = 'recipes/nanogpt.lua preset=tiny layers=2 width=32 block=16 threads=1'

local function plan(more, of)
  local out, code = shell.nnscaler(('plan %s %s'):format(of or job, more))
  return out, code
end

-- The number behind a text, in ms.
local function ms(out, pattern)
  local number, unit = out:match(pattern .. ' ([%d.]+) (m?s)')
  return assert(tonumber(number), out) * (unit == 's' and 1000 or 1)
end

describe('plan on hardware', function()
  teardown(remove)

  it('shows autodist beside other plans, none of which is faster', function()
    local path = folder .. '/best.json'
    local out, code = plan('pas_policy=autodist --hardware h100 --world 4 --plan-out ' .. path)
    assert.equal(0, code, out)
    assert.matches('hardware h100, 8 devices a host, figures modelled; 4 ranks, 16 samples a step',
      out)
    for _, name in ipairs { 'autodist', 'dp', 'fsdp', 'megatron', 'megatron sequence_parallel' } do
      assert.matches('\n[* ] ' .. name, out)
    end
    assert.is_true(ms(out, 'best: autodist on %d device%(s%),')
      <= ms(out, 'best of the others that fit: [%w_= ]+ on %d device%(s%),') * (1 + 1e-6))
    assert.matches('time: .-work on the devices %d', out)
    assert.matches('memory: %d', out)
    assert.matches('programs of all ranks: checked', out)
    assert.equal('autodist', base.json_decode(base.file_read(path)).policy)
  end)

  it('warns of a plan that was made for other hardware', function()
    local path = folder .. '/elsewhere.json'
    local out, code = plan('pas_policy=dp --hardware h100 --world 2 --plan-out ' .. path)
    assert.equal(0, code, out)
    out, code = shell.nnscaler(('plan %s --world 2 pas_policy=%s 2>&1'):format(job, path))
    assert.equal(0, code, out)
    assert.matches("elsewhere.json was made for hardware 'h100'; it is used on 'cpu'", out)
    out = shell.nnscaler(('plan %s --world 2 --hardware h100 pas_policy=%s 2>&1'):format(job, path))
    assert.no.matches('was made for hardware', out)
  end)

  it('gives the same plan again', function()
    local texts = {}
    for i = 1, 2 do
      local path = ('%s/%d.json'):format(folder, i)
      local out, code = plan('pas_policy=autodist --hardware h100 --world 2 '
        .. 'compute_config.plan_ngpus=2 --plan-out ' .. path)
      assert.equal(0, code, out)
      texts[i] = base.file_read(path)
    end
    assert.equal(texts[1], texts[2])
  end)

  it('prices the plan of another policy', function()
    local out, code = plan 'pas_policy=megatron --hardware a100-80x4 --world 4'
    assert.equal(0, code, out)
    assert.matches('hardware a100%-80, 4 devices a host', out)
    assert.matches('\n%* megatron +4 +1 ', out)
    assert.no.matches('autodist', out)
  end)

  it('takes a described cluster', function()
    local path = folder .. '/lab.yaml'
    base.file_write(path, 'name: lab\ndevices_per_host: 2\ndevice: h100\n'
      .. 'links: { inside: 1e11, across: 1e9 }\n', 'test')
    local out, code = plan('pas_policy=autodist --world 4 --hardware ' .. path)
    assert.equal(0, code, out)
    assert.matches('hardware lab, 2 devices a host', out)
    base.file_write(path, 'devices_per_host: 2\ndevice: h100\n', 'test')
    out, code = plan('pas_policy=autodist --world 4 --hardware ' .. path)
    assert.equal(2, code, out)
    assert.matches("lab.yaml:1:1: 'links' is missing", out)
  end)

  it('refuses what it does not know', function()
    local out, code = plan 'pas_policy=autodist --world 2 --hardware h10'
    assert.equal(2, code, out)
    assert.matches("no hardware 'h10'; known: a100%-40, a100%-80, b200, cpu, h100", out)
    out, code = plan 'pas_policy=autodist --world 12 --hardware h100'
    assert.equal(2, code, out)
    assert.matches('12 ranks on hosts of 8 devices; expected whole hosts', out)
    out, code = plan 'pas_policy=autodist --world 2 pas_config.mem_constrain=3'
    assert.equal(2, code, out)
    assert.matches("did you mean 'pas_config.mem_constraint'", out)
    out, code = plan 'pas_policy=autodist --world 2 pas_config.mem_constraint=0'
    assert.equal(2, code, out)
    assert.matches('mem_constraint is 0; expected GiB a device', out)
  end)

  it('keeps constraints, and refuses those that are for nothing', function()
    local path = folder .. '/constraints.yaml'
    local function constrained(text)
      base.file_write(path, text, 'test')
      return plan('pas_policy=autodist --hardware h100 --world 2 compute_config.plan_ngpus=2 '
        .. 'pas_config.partition_constraints_path=' .. path)
    end
    local out, code = constrained '- allowed_partition_dims: []\n'
    assert.equal(0, code, out)
    assert.no.matches('input %d dim', out)
    out, code = constrained '- name: lstm\n'
    assert.equal(2, code, out)
    assert.matches("the constraint of 'lstm' in '%*' .- matches no", out)
    out, code = constrained '- name: linear\n  replica_allowed: false\n'
    assert.equal(2, code, out)
    assert.matches('leaves no way to run .- aten::linear', out)
    out, code = constrained '- nam: linear\n'
    assert.equal(2, code, out)
    assert.matches("constraints.yaml:1:3: no key 'nam'", out)
    out, code = plan 'pas_policy=autodist pas_config.partition_constraints_path=none.yaml'
    assert.not_equal(0, code)
    assert.matches('none.yaml', out)
  end)

  it('plans pipelines, and refuses those that cannot be', function()
    local pipeline = 'pas_policy=autodist --hardware h100 --world 4 compute_config.plan_ngpus=4 '
    local out, code = plan(pipeline .. 'pas_config.pipeline_nstages=2')
    assert.equal(0, code, out)
    assert.matches('%d stages on 2 pipeline ranks', out)
    out, code = plan(pipeline .. 'pas_config.pipeline_nstages=3')
    assert.equal(1, code, out)
    assert.matches('pipeline_nstages is 3 on plan_ngpus = 4 devices; expected a divisor', out)
    out, code = plan(pipeline .. 'pas_config.pipeline_nstages=2 '
      .. 'pas_config.max_pipeline_bubble_ratio=0')
    assert.equal(1, code, out)
    assert.matches('no pipeline of 4 device%(s%) with %d+ micro%-batches is as asked', out)
  end)

  it('plans models without parameters, of one product, and of fewer operators than stages',
    function()
      for _, kind in ipairs { 'none', 'one', 'short' } do
        for _, policy in ipairs { 'autodist', 'rannc compute_config.plan_ngpus=2' } do
          local out, code = plan(('kind=%s pas_policy=%s --world 2'):format(kind, policy),
            'tests/cli/jobs/odd.lua')
          assert.equal(0, code, out)
          assert.matches('predicted step %d', out)
        end
        local out, code = plan(('kind=%s pas_policy=autodist --world 2 compute_config.plan_ngpus=2 '
          .. 'pas_config.pipeline_nstages=2'):format(kind), 'tests/cli/jobs/odd.lua')
        if kind == 'one' then
          assert.equal(0, code, out)
        else
          assert.equal(1, code, out)
          assert.matches('no pipeline of 2 device%(s%) with 2 micro%-batches is as asked', out)
        end
      end
    end)

  it('finds a plan where little memory is enough, and claims no proof that it has not', function()
    local out, code = plan('pas_policy=autodist --world 16 compute_config.plan_ngpus=16 '
      .. 'pas_config.mem_constraint=0.0001')
    assert.equal(0, code, out)
    local kb = tonumber(out:match '\n%* autodist .- ([%d.]+) KB\n')
    assert.is_true(kb <= 0.0001 * 2 ^ 20, out)
    out, code = plan('pas_policy=autodist --world 16 compute_config.plan_ngpus=16 '
      .. 'pas_config.mem_constraint=0.00005')
    assert.equal(1, code, out)
    assert.matches('no plan of 16 device%(s%) was found that keeps 52.4 KiB a device; weights', out)
  end)

  it('bounds how much faster plans within a limit could be', function()
    local missing = require('nnscaler._C.solve').highs_problem()
    if missing ~= '' then return pending(missing) end
    local out, code = plan('pas_policy=autodist --hardware h100 --world 2 '
      .. 'compute_config.plan_ngpus=2 pas_config.mem_constraint=0.0004')
    assert.equal(0, code, out)
    local gap = tonumber(out:match('; no plan of these cuts is faster by more than ([%d.]+) %% '
      .. 'within the limit of memory, by a linear program; %d'))
    -- The fastest plan without a limit takes 35 % less.
    assert.is_true(gap > 0 and gap < 20, out)
  end)

  it('says what is needed where nothing fits', function()
    local out, code = plan 'pas_policy=autodist --world 2 pas_config.mem_constraint=0.0001'
    assert.equal(1, code, out)
    assert.matches('no plan of 1 device%(s%) keeps 104.9 KiB a device; weights, gradients and '
      .. 'optimizer state take [%d.]+ KiB at least %(of each whole weight: transformer.h.0.mlp.c_fc'
      .. '.weight', out)
    assert.matches('what would fit instead: %-%-world', out)
    out, code = plan 'pas_policy=autodist --world 1 pas_config.mem_constraint=0.0002'
    assert.equal(1, code, out)
    local world, kb = out:match 'what would fit instead: %-%-world (%d): ([%d.]+) KB a device; mi'
    assert.is_true(tonumber(world) > 1 and tonumber(kb) <= 0.0002 * 2 ^ 20, out)
  end)
end)
