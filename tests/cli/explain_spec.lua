--- `nnscaler plan` explains plans of any policy: the report in its order, the trace,
--- differences, the sweep, reasons and the page.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
local job = 'recipes/nanogpt.lua preset=tiny layers=3 width=32 block=16 threads=1'

local function plan(more)
  local out, code = shell.nnscaler(('plan %s %s'):format(job, more))
  return out, code
end

local function read(name) return base.file_read(folder .. '/' .. name) end

describe('explain', function()
  teardown(remove)

  it('reports every part in order, with repeated layers in one line', function()
    local out, code = plan 'pas_policy=megatron --hardware h100 --world 4'
    assert.equal(0, code, out)
    local at = 1
    for _, part in ipairs { 'configuration: policy megatron; 4 devices of a plan, 4 ranks',
      'cost sources: calls modelled, links modelled %(hardware h100', '\ndepth 1\n    param_mem ',
      'fw_span ', 'train_mem ', 'buffer_mem ', '\ndepth 2', 'param mem [%d.]+ KB',
      'estimated minimum memory per device', 'search: none, the policy says all of the plan',
      'plan analysis for stage 0 on devices %[0, 1, 2, 3%]',
      'Total computation time', 'Top 10 of calls', 'aten::[%w_]+ x 3 in [%w_]+[%w_.]*%.%*',
      'File "', 'cut \'', 'comp_time [%d.]+ [mu]?s, comm_time [%d.]+ [mu]?s',
      'Total communication time', 'all_reduce', 'Module analysis', 'depth 1',
      'computation +%- transformer ', 'communication +%- transformer ', 'memory +%- ',
      'predicted step', 'memory of rank', 'memory over time: the most in each 12th',
      'bytes moved by rank 0' } do
      local _, stop = out:find(part, at)
      assert.is_truthy(stop, ('%s does not follow in:\n%s'):format(part, out))
      at = stop
    end
  end)

  it('tells of a search, and of three plans that it did not take', function()
    local out, code = plan 'pas_policy=autodist --hardware h100 --world 4'
    assert.equal(0, code, out)
    local _, count = out:gsub('\nrejected: [^\n]+ on %d device%(s%): [%d.]+ m?s a step '
      .. '%([+-][%d.]+ %%%), [%d.]+ [KMG]?B a device: the [tm]i?[em][em]', '')
    assert.equal(3, count, out)
    assert.matches('\nsearch: constraints on partitions: none; ZeRO %d, the fastest of the levels\n'
      .. 'search: %d+ operators %(%d+ distinct%)', out)
    assert.matches('\nsearch: [%d.]+ [mu]?s priced cuts, [%d.]+ [mu]?s searched', out)
  end)

  it('shows memory over time that ends where it began and peaks at the peak', function()
    local out = plan 'pas_policy=pp --world 2 --hardware h100 grad_accumulation_steps=4'
    for rank = 0, 1 do
      local course = out:match(('\n  rank %d: ([^\n]+)'):format(rank))
      local total = out:match(('\n%d  .-([%%d.]+ [KM]B)\n'):format(rank))
      assert.is_truthy(course and course:find(total, 1, true), out)
    end
  end)

  it('gives a report without hardware, and for pipelines the time line in seconds', function()
    local out, code = plan('pas_policy=pp --world 2 grad_accumulation_steps=4 --trace '
      .. folder .. '/pp.json')
    assert.equal(0, code, out)
    assert.matches('hardware cpu', out)
    assert.matches('plan analysis for stage 0 on devices %[0%]', out)
    assert.matches('plan analysis for stage 1 on devices %[1%]', out)
    assert.matches('predicted time line, one unit [%d.]+ m?u?s:\nrank 0 ', out)
    local parts, ends = { 0, 0 }, {}
    for _, event in ipairs(base.json_decode(read 'pp.json').traceEvents) do
      if event.ph == 'X' then
        assert.is_true(event.ts >= 0 and event.dur > 0)
        assert.is_true(event.ts >= (ends[event.tid] or 0) - 1e-6, 'events of a rank overlap')
        ends[event.tid] = event.ts + event.dur
        if event.args.stage then parts[event.tid + 1] = parts[event.tid + 1] + 1 end
      end
    end
    assert.same({ 8, 8 }, parts) -- forward and backward of four micro-batches
  end)

  it('says where two plans differ, and that one does not differ from itself', function()
    local path = folder .. '/tp.json'
    local out, code = plan('pas_policy=tp --world 2 --plan-out ' .. path)
    assert.equal(0, code, out)
    out = plan('pas_policy=tp --world 2 --diff ' .. path)
    assert.matches('no differences from', out)
    out, code = plan('pas_policy=megatron --world 2 --diff ' .. path)
    assert.equal(0, code, out)
    assert.matches('policy: %- tp %+ megatron', out)
    out, code = plan('pas_policy=megatron --world 2 --diff ' .. folder .. '/none.json')
    assert.is_true(code ~= 0)
    assert.matches('none.json', out)
  end)

  it('says why tensors lie as they do, and names what is near', function()
    local function why(policy, name)
      local out, code = plan(('pas_policy=%s --world 4 --log-level error --why %s'):format(policy,
        name))
      return out, code
    end
    local out, code = why('megatron', 'transformer.h.0.mlp.c_fc.weight')
    assert.equal(0, code, out)
    assert.matches("^weight 'transformer.h.0.mlp.c_fc.weight' %[128, 32%] is cut along dim 0 "
      .. 'into 4, as aten::linear in transformer.h.0.mlp.c_fc at .-gpt.lua:%d+ is cut along '
      .. "'n'%.\n$", out)
    assert.matches('is whole on 4 device%(s%), as aten::layer_norm',
      (why('megatron', 'transformer.h.0.ln_1.weight')))
    assert.matches("a sum of 4 addends, as aten::linear .- is cut along 'k', over which it sums",
      (why('megatron', 'transformer.h.1.attn.c_proj')))
    assert.matches('rests in shards .- %(ZeRO 3%), and its gradient is summed over 4 units',
      (why('fsdp', 'transformer.ln_f.weight')))
    assert.matches('it is made again in backward %(group 0 of recompute%), so it is not kept',
      (why('dp pas_config.recompute_modules=transformer.h.0.mlp', 'transformer.h.0.mlp.gelu')))
    out, code = why('megatron', 'transformer.h.0.mlp.c_fcc.weight')
    assert.equal(2, code, out)
    assert.matches("did you mean 'transformer.h.0.mlp.c_fc.weight'", out)
  end)

  it('writes one page that needs nothing else', function()
    local out, code = plan('pas_policy=pp --world 2 --hardware h100 grad_accumulation_steps=4 '
      .. '--html ' .. folder .. '/report.html')
    assert.equal(0, code, out)
    assert.matches('waiting in the pipeline %d', out)
    local page = read 'report.html'
    for _, foreign in ipairs { 'https?://', '<link', '<script', ' src=', 'url%(', '@import' } do
      assert.no.matches(foreign, page)
    end
    local open, alone = {}, { meta = true, ['!doctype'] = true }
    for slash, tag, rest in page:gmatch '<(/?)([!%w]+)([^>]*)>' do
      if slash == '/' then
        assert.equal(tag, table.remove(open))
      elseif not alone[tag] and rest:sub(-1) ~= '/' then
        open[#open + 1] = tag
      end
    end
    assert.same({}, open)
    local _, forward = page:gsub('<rect class="F"[^>]*><title>forward of', '')
    local micro = tonumber(out:match '\n%* pp +2 +1 +(%d+) ')
    assert.equal(2 * micro, forward) -- each micro-batch in both stages
    for _, part in ipairs { 'Time line', 'Memory', 'Memory over time', '<polygon ', 'Links',
      'Alternatives', 'Plan by module',
      'prefers%-color%-scheme:dark',
      'plan analysis for stage 1' } do
      assert.matches(part, page)
    end
  end)

  it('sweeps over numbers of ranks', function()
    local out, code = plan 'pas_policy=dp --hardware h100 --sweep world=8,12,64'
    assert.equal(0, code, out)
    assert.matches('\n +8 +1 +8 ', out)
    assert.matches('12 ranks on hosts of 8 devices', out)
    assert.matches('\n +64 +1 +64 ', out)
    out, code = plan 'pas_policy=dp --sweep world=0'
    assert.equal(2, code, out)
    assert.matches("%-%-sweep is 'world=0'; expected numbers of ranks", out)
  end)
end)
