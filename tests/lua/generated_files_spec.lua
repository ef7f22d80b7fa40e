--- Generated programs on disk: when a file runs as it is, when it is written anew, what is refused;
--- programs beyond LuaJIT's limits on one function; what may stand in a program.
local C = require 'nnscaler._C.graph'
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local lower = require 'nnscaler._C.lower'
local models = require 'tests.lua.odd_models'
local nn = require 'nnscaler.nn'
local message = require 'tests.lua.support.message'
local runs = require 'tests.lua.support.runs'

-- A model of `n` additions, each of which backward needs.
local function chain(n, factor)
  local Chain = nn.class 'Chain'
  function Chain:init() self.fc = nn.Linear(4, 4) end
  function Chain:forward(sample)
    local x = self.fc(sample.x)
    for i = 1, n do x = (x * (factor or 1.001)):tanh() + i % 3 * 0.01 end
    return x:square():mean()
  end
  return Chain()
end

local sample = { x = T.full({ 2, 4 }, 0.5) }

local function engine(job, model)
  job.seed, job.device = 3, 'cpu'
  return Program.new(model or chain(2), job)
end

local function step(made) return made:train_step({ sample }, { step = 0, seed = 3 }).loss end

describe('a generated file', function()
  local folder, path
  before_each(function()
    folder = runs.folder()
    path = folder .. '/Chain/gencode0.lua'
  end)
  after_each(function() runs.remove(folder) end)

  local function edit(from, to)
    local text, count = base.file_read(path):gsub(from, to)
    assert.equal(1, count)
    base.file_write(path, text)
    return text
  end

  it('is written once and used again', function()
    local loss = step(engine { gen_savedir = folder })
    local written = base.file_read(path)
    assert.equal(loss, step(engine { gen_savedir = folder }))
    assert.equal(written, base.file_read(path))
  end)

  it('may have its step edited, as by halving gradients', function()
    local optim = require 'nnscaler.optim'
    -- Weights before and after a step of SGD, and the gradients between.
    local function train()
      local made = engine { gen_savedir = folder }
      local before, gradients, after = {}, {}, {}
      local update = made:step_of(optim.new({ type = 'sgd', args = { lr = 0.5 } },
        made.parameters))
      for i, p in ipairs(made.parameters) do before[i] = p.data:detach():clone() end
      step(made)
      for i, p in ipairs(made.parameters) do gradients[i] = made:grad(p.name):clone() end
      update:sum()
      update:scale(1)
      update:clip(update:norm(), 0)
      update:update(0.5)
      for i, p in ipairs(made.parameters) do after[i] = p.data:detach() end
      return before, gradients, after
    end
    local function expect(factor)
      local before, gradients, after = train()
      for i, w in ipairs(before) do
        local gap = (w - gradients[i] * (0.5 * factor) - after[i]):abs():max():item()
        assert.near(0, gap, 1e-7)
        assert.truthy(gradients[i]:abs():max():item() > 1e-3)
      end
    end
    expect(1)
    edit('o:scale%(1, factor%)', 'o:scale(1, factor / 2)')
    expect(0.5)
  end)

  it('runs as it is when the user edited it, and is never overwritten', function()
    local loss = step(engine { gen_savedir = folder })
    local text = edit('\n  return (mean)\nend', '\n  return rt.operators("aten", { mul = '
      .. '"mul.Tensor" }).mul(%1, 10)\nend')
    assert.is_true(math.abs(10 * loss - step(engine { gen_savedir = folder })) < 1e-5)
    assert.equal(text, base.file_read(path))
    local made = engine { gen_savedir = folder, gen_reuse = 'override' }
    assert.matches('gencode0.lua was edited by hand; gen_reuse=override would overwrite it',
      message(step, made))
    assert.equal(text, base.file_read(path))
  end)

  it('of another model never runs', function()
    step(engine { gen_savedir = folder })
    local before = base.file_read(path)
    local plain = step(engine({}, chain(2, 0.5)))
    assert.matches('gencode0.lua differs from this run in\n  the traced model %(%x+ in the file, '
      .. '%x+ now%)',
      message(step, engine({ gen_savedir = folder, gen_reuse = 'match' }, chain(2, 0.5))))
    assert.equal(before, base.file_read(path))
    assert.equal(plain, step(engine({ gen_savedir = folder }, chain(2, 0.5))))
    assert.not_equal(before, base.file_read(path))
  end)

  it('of another model that the user edited stops the run', function()
    step(engine { gen_savedir = folder })
    local text = edit('\nlocal function forward', '\n-- mine\nlocal function forward')
    assert.matches('was edited by hand, but differs from this run in\n  the traced model',
      message(step, engine({ gen_savedir = folder }, chain(2, 0.5))))
    assert.equal(text, base.file_read(path))
  end)

  it('that is not a program is refused', function()
    step(engine { gen_savedir = folder })
    local header = base.file_read(path):match '^(.-\n)local'
    base.file_write(path, header .. 'local x = = 1\n')
    assert.matches('%[program.load%] the generated program does not compile: .*gencode0.lua:%d+: '
      .. 'unexpected symbol',
      message(step, engine { gen_savedir = folder }))
    base.file_write(path, header .. 'return {}\n')
    assert.matches('returns no table with a forward function',
      message(step, engine { gen_savedir = folder }))
    base.file_write(path, 'return {}\n')
    assert.matches('gencode0.lua', message(step, engine { gen_savedir = folder }))
    assert.equal('return {}\n', base.file_read(path))
  end)
end)

describe('a program', function()
  it('of 2,000 operators keeps within the limits of LuaJIT', function()
    local job = { seed = 3, device = 'cpu' }
    local eager, program = Eager.new(chain(700), job), Program.new(chain(700), job)
    assert.is_true(math.abs(step(eager) - step(program)) < 1e-6)
    for _, p in ipairs(program.parameters) do
      local want, got = eager:grad(p.name), program:grad(p.name)
      assert.is_true((want - got):abs():max():item() <= 1e-6 * want:abs():max():item())
    end
  end)

  it('calls no random operator of ATen', function()
    local random, seen = {}, 0
    for _, row in ipairs(C.ops()) do
      if row.random and row.name:find '^aten' then random[row.name] = true end
    end
    assert.is_true(random['aten::dropout'] and random['aten::bernoulli'])
    for _, case in ipairs(models) do
      local program
      local skeleton = lower.skeleton
      lower.skeleton = function(...)
        local made = skeleton(...)
        program = made:project()
        return made
      end
      local made = Program.new(case.make(), { seed = 1, device = 'cpu' })
      local ok, err = pcall(made.compile, made, case.sample(T.generator(1)), true)
      lower.skeleton = skeleton
      assert(ok, err)
      for op in program:text():gmatch '[%w_]+::[%w_.]+' do
        local name = op:match '^[^.]+'
        assert.is_nil(random[name] or random[op], ('%s in the program of a model with %s')
          :format(op, case.name))
        assert.is_nil(op:find 'rand' or op:find 'native_dropout', op)
        seen = seen + (op:find '^nnscaler::dropout' and 1 or 0)
      end
    end
    assert.is_true(seen >= 2)
  end)

  it('of attention never holds all scores', function()
    local length, width = 2048, 8
    local Attention = nn.class 'Attention'
    function Attention:init()
      self.attn = nn.MultiHeadAttention(width, 1)
    end
    function Attention:forward(s) return self.attn(s.x, nil, { causal = true }):square():mean() end
    local job, x = { seed = 1, device = 'cpu' }, T.full({ 1, length, width }, 0.5)
    for _, kind in ipairs { Eager, Program } do
      local made = kind.new(Attention(), job)
      made:train_step({ { x = x } }, { step = 0, seed = 1 })
      collectgarbage()
      door.memory(true)
      local before = door.memory()
      made:train_step({ { x = x } }, { step = 1, seed = 1 })
      local _, peak = door.memory()
      assert.is_true(peak - before < 4 * length * length / 2,
        ('%d bytes beyond what was there; all scores are %d'):format(peak - before,
          4 * length * length))
    end
  end)
end)
