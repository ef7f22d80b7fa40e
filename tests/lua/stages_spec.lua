--- Programs of pipelines: segments a stage, one slot a weight, which part of backward does what.
local F = require 'nnscaler.functional'
local GPT = require 'nnscaler.models.gpt'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'
local policies = require 'nnscaler.policies'
local trace = require 'nnscaler.trace'

local function plan_of(graph, config, devices)
  return policies.run(graph, 'pp', { plan_ngpus = devices or 2, runtime_ngpus = devices or 2,
    pas_config = config, micro_batches = 4 })
end

local function gpt()
  local model = GPT { vocab = 16, layers = 8, heads = 2, width = 8, block = 4 }
  local x = T.zeros({ 4, 4 }, { dtype = 'int64' })
  return (trace(model, { x, x }, { training = true }))
end

local function decoded(graph, schedule, rank)
  local plan = plan_of(graph, { pipeline_scheduler = schedule })
  return base.json_decode(lower.lower(graph, { plan = plan, rank = rank }):json())
end

local function count(segment, what)
  local n = 0
  for _, instr in ipairs(segment.instrs) do
    if instr.kind == what or instr.op == what then n = n + 1 end
  end
  return n
end

describe('the program of a pipeline', function()
  local graph = gpt()

  it('has the segments of each stage and one slot a weight', function()
    local program = decoded(graph, '1f1b_interleaved', 0)
    local names, seen = {}, {}
    for i, segment in ipairs(program.segments) do
      names[i] = segment.name .. ' ' .. segment.stage
    end
    assert.same({ 'forward 0', 'backward 0', 'forward1 2', 'backward1 2' }, names)
    for _, id in ipairs(program.parameters) do
      local name = program.slots[id + 1].name
      assert.is_nil(seen[name], name)
      seen[name] = true
    end
  end)

  it('keeps gradients of weights out of what other stages wait for', function()
    for rank = 0, 1 do
      local program = decoded(graph, 'zb_h1', rank)
      local by_name = {}
      for _, segment in ipairs(program.segments) do by_name[segment.name] = segment end
      assert.equal(0, count(by_name.backward, 'accumulate'))
      assert.equal(#program.parameters, count(by_name.weight, 'accumulate'))
      assert.equal(0, count(by_name.weight, 'comm::send') + count(by_name.weight, 'comm::receive'))
      assert.is_true(count(by_name.weight, 'aten::mm')
        + count(by_name.weight, 'nnscaler::linear_weight') >= 16)
    end
  end)

  it('writes one function for equal layers of each part', function()
    local plan = plan_of(graph, { pipeline_scheduler = 'zb_h1' })
    local program = lower.lower(graph, { plan = plan, rank = 0 })
    local text = program:lua()
    for _, name in ipairs { 'forward', 'backward', 'weight' } do
      assert.matches('function block%.h_' .. name .. '%(', text)
      assert.matches('\nlocal function ' .. name .. '%(', text)
    end
    local _, lines = text:gsub('\n', '')
    assert.is_true(lines <= 300, lines)
    assert.equal(text, lower.lower(graph, { plan = plan, rank = 0 }):lua())
  end)

  it('passes the check of all ranks', function()
    for _, schedule in ipairs { '1f1b', 'gpipe', '1f1b_interleaved', 'zb_h1', 'zbv', 'chimera' } do
      local plan = plan_of(graph, { pipeline_scheduler = schedule }, 4)
      assert.is_true(lower.skeleton(graph, { plan = plan }):check())
    end
  end)

  it('checks the programs of all ranks before it writes them', function()
    local options = require 'nnscaler.options'
    local pipeline = require 'nnscaler.pipeline'
    local plan = plan_of(graph, {}, 2)
    local line = pipeline.new({ name = 'GPT' }, options.of({ pas_policy = 'pp' }, 2))
    line:use_plan(graph, plan)
    local check, compared, written = line.check, nil, nil
    function line:check(of, under)
      compared = check(self, of, under)
      error 'broken'
    end
    function line.commit() written = true end
    local ok, message = pcall(line.write_all, line, graph)
    assert.is_false(ok)
    assert.matches('broken', tostring(message))
    assert.is_true(compared)
    assert.is_nil(written)
  end)

  it('refuses buffers that micro-batches update out of order', function()
    local model = nn.class 'Normed'
    function model:init() self.norm = nn.BatchNorm2d(4) end
    function model:forward(x) return F.relu(self.norm(x)):sum() end
    local normed = trace(model {}, { T.zeros { 4, 4, 2, 2 } }, { training = true })
    local plan = plan_of(normed, { pipeline_scheduler = 'chimera' })
    local ok, e = pcall(lower.lower, normed, { plan = plan, rank = 0 })
    assert.is_false(ok)
    assert.matches("norm%..* is updated by every micro%-batch; schedule 'chimera'", tostring(e))
  end)

  it('refuses buffers whose writes scale units would have to see', function()
    local function refused(forward)
      local model = nn.class 'Counting'
      function model:init() self:register_buffer('seen', T.ones { 4 }) end
      model.forward = forward
      local traced = trace(model {}, { T.zeros { 4 } }, { training = true })
      local plan = policies.run(traced, 'dp', { plan_ngpus = 1, runtime_ngpus = 2, pas_config = {},
        micro_batches = 4 })
      local ok, e = pcall(lower.lower, traced, { plan = plan, rank = 0 })
      assert.is_false(ok)
      return tostring(e)
    end
    assert.matches('results depend on what seen held, .*; 2 scale units cannot see each other',
      refused(function(self, x)
        local loss = (x * self.seen):sum()
        self.seen:add_(1)
        return loss
      end))
    assert.matches('seen is written as no number · seen %+ what a micro%-batch adds',
      refused(function(self, x)
        self.seen:mul_(x)
        return x:sum()
      end))
  end)
end)
