--- Generated Lua under plans: repeated layers become one function whatever communicates in them,
--- groups have names, the rank's weights stand at the top, and the same input gives the same bytes.
local layers = require 'tests.lua.support.layers'
local lower = require 'nnscaler._C.lower'

local function program(options, tp, pp, rank, dp)
  local graph = layers.graph(layers.model(options))
  local plan = layers.plan(graph, tp, pp, dp)
  return lower.lower(graph, { plan = plan, rank = rank })
end

-- How often a plain text occurs.
local function count(text, what)
  local n, at = 0, 1
  while true do
    local first, last = text:find(what, at, true)
    if not first then return n end
    n, at = n + 1, last + 1
  end
end

local function functions_of(text)
  local names = {}
  for name in text:gmatch '\nfunction block%.([%w_]+)' do names[#names + 1] = name end
  return names
end

describe('repeated layers', function()
  it('are one function with the communication in it', function()
    local text = program({}, 2, 1, 0):lua()
    assert.same({ 'layers_forward', 'layers_backward' }, functions_of(text))
    assert.equal(1, count(text, 'for i = 0, 3 do'))
    assert.equal(1, count(text, 'for i = 3, 0, -1 do'))
    assert.equal(4, count(text, 'comm.all_reduce(')) -- two per layer and direction, written once
  end)

  it('are one function on each stage, also beside the cuts', function()
    for rank = 0, 7 do
      local text = program({ layers = 6 }, 4, 2, rank):lua()
      assert.same({ 'layers_forward', 'layers_backward' }, functions_of(text))
      assert.truthy(text:find(rank < 4 and 'for i = 0, 2 do' or 'for i = 3, 5 do', 1, true))
      assert.equal(1, count(text, 'comm.send('))
      assert.equal(1, count(text, 'comm.receive('))
    end
  end)

  it('that alternate are two functions', function()
    local text = program({ layers = 6, alternate = true }, 2, 1, 1):lua()
    assert.same({ 'layers_forward', 'layers_forward_2', 'layers_backward', 'layers_backward_2' },
      functions_of(text))
    assert.equal(3, count(text, '= block.layers_forward('))
    assert.equal(3, count(text, '= block.layers_forward_2('))
  end)

  it('that run again in backward are one function', function()
    local text = program({ recompute = true }, 2, 1, 0):lua()
    assert.same({ 'layers_forward', 'layers_backward' }, functions_of(text))
    assert.equal(2, count(text, 'nnscaler.attention('))
  end)

  it('of which one is read by a later stage: the others are one function', function()
    for rank = 0, 3 do
      local text = program({ layers = 6, skip = true }, 2, 2, rank):lua()
      assert.truthy(text:find('function block.layers_forward', 1, true))
      assert.truthy(#functions_of(text) >= 2)
    end
  end)
end)

describe('a generated file', function()
  it('names each group of ranks once', function()
    for rank, ranks in next, { [0] = '0, 1', [1] = '0, 1', [2] = '2, 3', [5] = '4, 5' } do
      local text = program({}, 2, 1, rank, 4):lua()
      assert.equal(1, count(text, ('local tp = rt.group { %s }\n'):format(ranks)))
      local across = rank % 2 == 0 and '0, 2, 4, 6' or '1, 3, 5, 7'
      assert.equal(1, count(text, ('local dp = rt.group { %s }\n'):format(across))) -- of the step
      assert.equal(2, count(text, 'rt.group'))
      assert.equal(4, count(text, ', tp)'))
    end
  end)

  it('tells the weights of the rank with their part', function()
    local text = program({}, 2, 2, 3):lua()
    assert.truthy(text:find(table.concat {
      '-- weights of this rank:\n',
      '--   layers.2…3.input_layernorm.weight  float32[16]\n',
      '--   layers.2…3.self_attn.q_proj.weight  float32[8, 16]  rows 8..15 of 16\n',
      '--   layers.2…3.self_attn.k_proj.weight  float32[8, 16]  rows 8..15 of 16\n',
      '--   layers.2…3.self_attn.v_proj.weight  float32[8, 16]  rows 8..15 of 16\n',
      '--   layers.2…3.self_attn.o_proj.weight  float32[16, 8]  columns 8..15 of 16\n',
    }, 1, true), text)
  end)

  it('differs between ranks of one stage only where they do', function()
    local function below(rank)
      return (program({}, 2, 1, rank):lua():gsub('^.-\nlocal rt', '\nlocal rt'))
    end
    assert.equal(below(0), below(1))
  end)

  it('is the same bytes twice', function()
    assert.equal(program({}, 2, 2, 1):lua(), program({}, 2, 2, 1):lua())
  end)

  it('has a comment with source line and module beside each call', function()
    local text = program({}, 2, 1, 0):lua()
    assert.truthy(text:find('aten.linear(s.mul, w.mlp.down_proj.weight)  -- layers.lua:', 1, true)
      or text:find('layers.lua:39  mlp.down_proj', 1, true), text)
  end)
end)

describe('a transformer of 32 layers', function()
  local graph = layers.graph(layers.model { layers = 32, vocab = 128256, width = 4096, heads = 32,
    inner = 14336 }, 1, 8192)

  it('takes at most 300 lines of 100 columns a stage', function()
    local plan = layers.plan(graph, 4, 2)
    for rank = 0, 7, 4 do
      local text = lower.lower(graph, { plan = plan, rank = rank }):lua()
      local lines = 0
      for line in text:gmatch '([^\n]*)\n' do
        lines = lines + 1
        assert.is_true(#line <= 100, line)
      end
      assert.is_true(lines <= 300, ('rank %d has %d lines'):format(rank, lines))
    end
  end)

  it('is lowered and written for one rank of 1,024 in seconds', function()
    local start = os.clock() -- of CPU: others may load the machine
    local plan = layers.plan(graph, 8, 16, 8)
    local text = lower.lower(graph, { plan = plan, rank = 1001 }):lua()
    assert.truthy(text:find('rank 1001 of 1024', 1, true))
    assert.is_true(os.clock() - start <= 5)
  end)
end)
