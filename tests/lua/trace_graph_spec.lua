--- What a traced model looks like as a graph, and that the graph means what the model computes.
local T = require 'nnscaler.tensor'
local ops = require 'nnscaler.ops'
local GPT = require 'nnscaler.models.gpt'
local MLP = require 'nnscaler.models.mlp'
local nn = require 'nnscaler.nn'
local nnscaler = require 'nnscaler'
local run = require 'tests.lua.graph_eval'
local trace = require 'nnscaler.trace'

local function spec(shape, dtype) return T.zeros(shape, { dtype = dtype or 'float32' }) end

-- The text of a graph without source places, names of the library or leading spaces.
local function lines(graph)
  local list = {}
  for line in graph:text(false):gmatch '[^\n]+' do list[#list + 1] = (line:gsub('^%s+', '')) end
  return list
end

-- The nodes of an operator.
local function nodes_of(graph, op)
  local list = {}
  for _, node in ipairs(graph:nodes()) do
    if node.op == op then list[#list + 1] = node end
  end
  return list
end

local function close(expected, got)
  assert.are.same(expected.shape, got.shape)
  assert.is_true((expected - got):abs():max():item() <= 1e-6)
end

describe('the graph of an MLP', function()
  local model = MLP { sizes = { 3, 5, 2 } }
  local graph = trace(model, { spec { 4, 3 }, spec({ 4 }, 'int64') })

  it('reads as a program', function()
    assert.are.same({
      'graph "MLP" training',
      'input     %0 "x": float32[4, 3]',
      'input     %1 "y": int64[4]',
      'parameter %2 "layers.0.weight": float32[5, 3] grad',
      'parameter %3 "layers.0.bias": float32[5] grad',
      'parameter %4 "layers.2.weight": float32[2, 5] grad',
      'parameter %5 "layers.2.bias": float32[2] grad',
      '%6: float32[4, 5] grad = aten::linear(input=%0, weight=%2, bias=%3)  -- layers.0#0',
      '%7: float32[4, 5] grad = aten::relu(self=%6)  -- layers.1#0',
      '%8: float32[4, 2] grad = aten::linear(input=%7, weight=%4, bias=%5)  -- layers.2#0',
    }, { unpack(lines(graph), 1, 10) })
  end)

  it('survives JSON', function()
    local again = require('nnscaler._C.graph').from_json(graph:json())
    assert.are.equal(graph:text(), again:text())
    assert.are.equal(graph:hash(), again:hash())
  end)

  it('has one hash in every trace, and another for other sizes', function()
    local args = { spec { 4, 3 }, spec({ 4 }, 'int64') }
    assert.are.equal(graph:hash(), trace(MLP { sizes = { 3, 5, 2 } }, args):hash())
    local wider = trace(MLP { sizes = { 3, 6, 2 } }, args)
    assert.are_not.equal(graph:hash(), wider:hash())
    assert.are.equal(graph:structure(), wider:structure())
  end)
end)

describe('the graph of a GPT', function()
  local model = GPT { vocab = 17, layers = 2, heads = 2, width = 8, block = 6, dropout = 0.1 }
  local ids = spec({ 3, 6 }, 'int64')
  local graph = trace(model, { ids, ids })

  it('has the spelled operators with module paths and lines', function()
    local attention = nodes_of(graph, 'aten::scaled_dot_product_attention')
    assert.are.equal(2, #attention)
    assert.are.equal('transformer.h.1.attn', attention[2].module)
    assert.is_truthy(attention[2].file:find 'models/gpt.lua$')
    assert.is_truthy(attention[2].source:find 'scaled_dot_product_attention')
    assert.are.equal(0.1, attention[1].args.dropout_p)
  end)

  it('says that a call in a tail position is made where forward returns', function()
    -- `return self.resid_dropout(y)`: LuaJIT keeps no frame of it.
    for _, node in ipairs(nodes_of(graph, 'aten::dropout')) do
      assert.is_truthy(node.file:find 'models/gpt.lua$')
      if node.module:find 'resid_dropout' then
        assert.are.equal('return self.resid_dropout(y)', node.source)
      end
    end
  end)

  it('holds the tied weight once', function()
    local tied = 'alias     "lm_head.weight" = "transformer.wte.weight"'
    assert.is_truthy(graph:text():find(tied, 1, true))
  end)

  it('has no dropout in evaluation, and leaves the mode as it was', function()
    local evaluation = trace(model, { ids, ids }, { training = false })
    for _, node in ipairs(nodes_of(evaluation, 'aten::dropout')) do
      assert.is_false(node.args.train)
    end
    local attention = nodes_of(evaluation, 'aten::scaled_dot_product_attention')
    assert.are.equal(0, attention[1].args.dropout_p)
    assert.is_true(model.training)
    model:eval()
    model.lm_head.training = true
    trace(model, { ids, ids })
    assert.is_false(model.training)
    assert.is_true(model.lm_head.training)
    model:train()
  end)

  it('computes what the model computes', function()
    model:materialize(5)
    local tokens = T.tensor({ { 1, 5, 9, 16, 0, 3 }, { 2, 2, 7, 11, 4, 8 } }, { dtype = 'int64' })
    local targets = T.tensor({ { 5, 9, 16, 0, 3, -100 }, { 2, 7, 11, 4, 8, 1 } },
      { dtype = 'int64' })
    local leaves = { x = tokens, y = targets }
    for _, entry in ipairs(model:named_parameters()) do leaves[entry.name] = entry.param end
    model:eval()
    local expected = model(tokens, targets)
    local evaluation = trace(model, { tokens, targets }, { training = false })
    close(expected, run(evaluation, leaves)[evaluation:outputs()[1].value])
    model:train()
  end)
end)

describe('a traced model', function()
  it('takes nested samples by sorted field names and returns nested results', function()
    local graph = trace(function(sample)
      local y = sample.b.x * sample.list[2]
      return y:sum(), { tokens = 3, parts = { y, sample.flag }, name = 'n' }
    end, { { list = { spec { 2 }, spec { 2 } }, b = { x = spec { 2 } }, flag = true } },
      { arg_names = { 'sample' } })
    local names = {}
    for i, value in ipairs(graph:inputs()) do names[i] = value.name end
    assert.are.same({ 'sample.b.x', 'sample.list.1', 'sample.list.2' }, names)
    local outputs = graph:outputs()
    assert.are.equal(3, outputs[2].tokens)
    assert.are.equal('n', outputs[2].name)
    assert.are.equal(graph:nodes()[1].outputs[1], outputs[2].parts[1].value)
    assert.is_true(outputs[2].parts[2])
  end)

  it('lists parameters that it does not use, and frozen ones without grad', function()
    local Model = nn.class 'Model'
    function Model:init()
      self.used = nn.Parameter { shape = { 2 } }
      self.unused = nn.Parameter { shape = { 3 } }
      self.frozen = nn.Parameter { shape = { 2 } }
      self.frozen.requires_grad = false
    end
    function Model:forward(x) return (x * self.used * self.frozen):sum() end
    local graph = trace(Model(), { spec { 2 } })
    local seen = {}
    for i, p in ipairs(graph:parameters()) do seen[i] = { p.name, p.requires_grad } end
    assert.are.same({ { 'used', true }, { 'unused', true }, { 'frozen', false } }, seen)
  end)

  it('carries requires_grad where PyTorch would', function()
    local Model = nn.class 'Model'
    function Model:init() self.w = nn.Parameter { shape = { 3 } } end
    local seen = {}
    function Model:forward(x)
      local y = x * self.w
      seen.input, seen.product = x.requires_grad, y.requires_grad
      seen.best, seen.mask = y:argmax().requires_grad, y:gt(0).requires_grad
      seen.detached, seen.ones = y:detach().requires_grad, T.ones { 3 }.requires_grad
      seen.values = (y:max(0, false)).requires_grad
      seen.quiet = T.no_grad(function() return y * 2 end).requires_grad
      local written = T.zeros { 3 }
      written:add_(y)
      seen.written = written.requires_grad
      local all = y:sum() + y:detach():sum() + written:sum()
      return all, { y:argmax(), y:gt(0), T.ones { 3 } }
    end
    local model = Model()
    -- The results that the checks above make and nothing uses are branches to a trace.
    local ok, e = pcall(trace, model, { spec { 3 } })
    assert.is_false(ok)
    assert.is_truthy(tostring(e):find('trace.branch', 1, true))
    assert.are.same({ input = false, product = true, best = false, mask = false, detached = false,
      ones = false, values = true, quiet = false, written = true }, seen)
  end)

  it('keeps small tensors made outside as constants', function()
    local table_ = T.tensor({ 1, 2, 3 }, { dtype = 'int64' })
    local graph = trace(function(x) return (x * table_ + table_):sum() end, { spec { 3 } })
    local constants = {}
    for _, value in ipairs(graph:values()) do
      if value.role == 'constant' then constants[#constants + 1] = value end
    end
    assert.are.equal(1, #constants)
    assert.are.equal('\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0', constants[1].data)
  end)

  it('updates the statistics of batch norm in training only', function()
    local Model = nn.class 'Model'
    function Model:init() self.bn = nn.BatchNorm2d(3) end
    function Model:forward(x) return self.bn(x):sum() end
    local model = Model()
    local graph = trace(model, { spec { 2, 3, 4, 4 } })
    local updates, values = {}, graph:values()
    for i, update in ipairs(graph:buffer_updates()) do
      updates[i] = { values[update.buffer + 1].name, values[update.value + 1].shape,
                     values[update.value + 1].requires_grad }
    end
    assert.are.same({ { 'bn.running_mean', { 3 }, false }, { 'bn.running_var', { 3 }, false },
                      { 'bn.num_batches_tracked', {}, false } }, updates)
    local norm = nodes_of(graph, 'aten::batch_norm')[1]
    assert.are.equal(3, #norm.outputs)
    local evaluation = trace(model, { spec { 2, 3, 4, 4 } }, { training = false })
    assert.are.equal(0, #evaluation:buffer_updates())
    assert.are.equal(1, #nodes_of(evaluation, 'aten::batch_norm')[1].outputs)
  end)

  it('reads a buffer after it was written', function()
    local Model = nn.class 'Model'
    function Model:init() self:register_buffer('seen', { shape = { 2 } }) end
    function Model:forward(x)
      self.seen[0] = x:sum()
      return (x * self.seen):sum()
    end
    local graph = trace(Model(), { spec { 2 } })
    local update = graph:buffer_updates()[1]
    assert.are.equal(update.value, nodes_of(graph, 'aten::mul.Tensor')[1].args.other.value)
  end)

  it('refuses a write to a parameter by its name', function()
    local Model = nn.class 'Model'
    function Model:init() self.w = nn.Parameter { shape = { 2 } } end
    function Model:forward(x)
      self.w:mul_(0.5)
      return (x * self.w):sum()
    end
    local ok, e = pcall(trace, Model(), { spec { 2 } })
    assert.is_false(ok)
    assert.is_truthy(tostring(e):find("[trace.write] aten::mul_", 1, true))
    assert.is_truthy(tostring(e):find("parameter 'w'; at trace_graph_spec.lua:", 1, true))
  end)

  it('refuses a parameter that the model does not hold', function()
    local stray = nn.Parameter { shape = { 2 } }
    local ok, e = pcall(trace, function(x) return (x * stray):sum() end, { spec { 2 } })
    assert.is_false(ok)
    assert.is_truthy(tostring(e):find('does not belong to the model', 1, true))
  end)

  it('marks regions that backward recomputes', function()
    local graph = trace(function(x)
      local y = nnscaler.recompute(function(a, k) return (a * k):exp() end, x, 3)
      local z = nnscaler.recompute(ops.aten.relu, y)
      return z:sum()
    end, { spec { 2 } })
    local text = graph:text()
    assert.is_truthy(text:find('aten::exp[^\n]*recompute=0'))
    assert.is_truthy(text:find('aten::relu[^\n]*recompute=1'))
    assert.is_nil(text:find('aten::sum[^\n]*recompute'))
    assert.are.equal(6, nnscaler.recompute(function(a) return a * 2 end, 3))
  end)

  it('warns of operators that the table does not know, once per line', function()
    local _, warnings = trace(function(x)
      for _ = 1, 3 do x = ops.aten.i0(x) end
      return x:sum()
    end, { spec { 2 } })
    assert.are.equal(1, #warnings)
    for _, piece in ipairs { 'aten::i0 is not in the operator table', 'trace_graph_spec.lua:',
                             '`for _ = 1, 3 do x = ops.aten.i0(x) end`' } do
      assert.is_truthy(warnings[1]:find(piece, 1, true))
    end
  end)

  it('does not depend on the device of its factories', function()
    local graph = trace(function(x) return x + T.zeros({ 2 }, { device = x.device }) end,
      { spec { 2 } }, { training = false })
    assert.is_truthy(graph:text():find('device=nil', 1, true))
  end)

  it('follows Lua control flow on sizes', function()
    local function program(x)
      for _ = 1, x:size(0) do x = x * 2 end
      return x:sum()
    end
    assert.are.equal(4, #trace(program, { spec { 3 } }):nodes())
    assert.are.equal(6, #trace(program, { spec { 5 } }):nodes())
  end)

  it('may branch, join and share', function()
    local graph = trace(function(x)
      local a, b = x:exp(), x:sin()
      return (a * b + a):sum()
    end, { spec { 2 } })
    assert.are.same({ 1, 1 }, { #nodes_of(graph, 'aten::exp'), #nodes_of(graph, 'aten::sin') })
  end)

  it('may be one operator, or none', function()
    assert.are.equal(1, #trace(function(x) return x:sum() end, { spec { 2 } }):nodes())
    local none = trace(function(x) return x end, { spec { 2 } }, { training = false })
    assert.are.equal(0, #none:nodes())
  end)
end)

describe('a cache of specialisations', function()
  it('traces each shape and mode once, and drops the oldest', function()
    local built = 0
    local cache = trace.cache(function(x) return x:sum() end, {
      limit = 2, name = 'sum', build = function(graph)
        built = built + 1
        return graph
      end,
    })
    local first = cache:get({ spec { 2 } }, true)
    assert.are.equal(first, cache:get({ spec { 2 } }, true))
    cache:get({ spec { 3 } }, true)
    assert.are.equal(2, built)
    cache:get({ spec { 2 } }, true)
    cache:get({ spec { 2 } }, false)  -- drops the one of size 3
    assert.are.equal(3, built)
    cache:get({ spec { 2 } }, true)
    assert.are.equal(3, built)
    cache:get({ spec { 3 } }, true)
    assert.are.equal(4, built)
  end)

  it('tells nested samples apart', function()
    local key = trace.key
    assert.are_not.equal(key({ { a = spec { 2 } } }, true), key({ { b = spec { 2 } } }, true))
    assert.are_not.equal(trace.key({ spec { 2 }, 3 }, true), trace.key({ spec { 2 }, 4 }, true))
    assert.are_not.equal(trace.key({ spec { 2 } }, true), trace.key({ spec({ 2 }, 'int64') }, true))
  end)
end)

describe('tracing', function()
  it('allocates no tensor, however large the model', function()
    local layers = nn.Sequential()
    for _ = 1, 20 do layers:append(nn.Linear(65536, 65536)) end  -- 344 GB
    local function resident()
      for line in io.lines '/proc/self/status' do
        local kb = line:match '^VmRSS:%s+(%d+)'
        if kb then return tonumber(kb) / 1024 end
      end
    end
    local before = resident()
    local graph = trace(layers, { spec { 8, 65536 } }, { training = false })
    assert.are.equal(20, #graph:nodes())
    assert.is_true(resident() - before < 32, 'resident memory grew')
  end)

  it('of 128 layers takes well under a second', function()
    local model = GPT { vocab = 257, layers = 128, heads = 8, width = 512, block = 128 }
    local ids = spec({ 2, 128 }, 'int64')
    local start = os.clock() -- of CPU: others may load the machine
    local graph = trace(model, { ids, ids })
    local seconds = os.clock() - start
    assert.is_true(#graph:nodes() > 128 * 15)
    assert.is_true(seconds < 2, ('took %.2f s'):format(seconds))
  end)
end)
