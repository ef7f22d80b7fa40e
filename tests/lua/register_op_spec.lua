--- Operators that a script registers: recorded as one node, differentiated, split.
local T = require 'nnscaler.tensor'
local own = require 'tests.lua.support.own_ops'
local lower = require 'nnscaler._C.lower'
local register_op = require 'nnscaler.register_op'
local trace = require 'nnscaler.trace'
local verify = require 'nnscaler.verify.registered'
local message = require 'tests.lua.support.message'

local place = 'tests.lua.support.own_ops'

local function check(name) return verify.check('tests::' .. name, place) end

describe('a registered operator', function()
  it('is one node of the graph, and a plain call elsewhere', function()
    local x = T.randn({ 4, 6 }, { generator = T.generator(1) })
    local y, sums = own.gelu_of(x, 3)
    assert.is_true(y:equal(x * 3))
    assert.same({ 6 }, sums.shape)
    local graph = trace(function(a) return own.gelu_of(a, 3) end, { x }, { training = false })
    local nodes = graph:nodes()
    assert.equal(1, #nodes)
    assert.equal('tests::two', nodes[1].op)
    assert.equal(3, nodes[1].args.k)
    local values = graph:values()
    assert.same({ 4, 6 }, values[nodes[1].outputs[1] + 1].shape)
    assert.same({ 6 }, values[nodes[1].outputs[2] + 1].shape)
    assert.equal('register_op_spec.lua', nodes[1].file:match '[^/]+$')
  end)

  it('may write to a copy: register_op_clone', function()
    local double = register_op('tests::register_op_clone', {
      annotation = 'a b -> a b',
      body = function(x)
        local y = x:clone()
        y:mul_(2)
        return y + x
      end,
    })
    local x = T.randn({ 4, 6 }, { generator = T.generator(1), dtype = 'float64' })
    local graph = trace(function(a) return double(a) end, { x }, { training = false })
    assert.equal(1, #graph:nodes())
    -- The same lines elsewhere: what was copied is not what is written.
    local function beside(a)
      local y = a * 1
      local z = y:clone()
      z:mul_(2)
      return z + y
    end
    local values = lower.lower(trace(beside, { x }, { training = false })):lua()
    assert.matches('aten.mul_Scalar%(clone, 2%)', values)
    assert.matches('aten.add%(mul_?2?, mul%)', values)
    assert.is_true(double(x):equal(x * 3))
  end)

  it('of another body is another graph', function()
    local function hash(factor)
      local op = register_op('tests::factor', { body = function(x) return x * factor end })
      return trace(op, { T.zeros { 2 } }, { training = false, arg_names = { 'x' } }):hash()
    end
    assert.equal(hash(2), hash(2))
    assert.not_equal(hash(2), hash(3))
  end)

  -- Purity, shapes, derivative, and every split on rank threads against the whole.
  for name, splits in pairs { swiglu = 4, project = 5, group_scale = 3, rows = 2, double = 2,
    beside = 3, gated = 3, norm_and_unit = 1 } do
    it('passes its checks: ' .. name, function()
      local report = check(name)
      assert.same({}, report.problems)
      assert.is_true(report.splits >= splits - 1, ('%d splits'):format(report.splits))
    end)
  end

  it('says in one table how it is traced, counted and taken by policies', function()
    local op = register_op('tests::weighted', {
      annotation = 'n k+, h k+ -> n h', kind = 'linear',
      flops = function(x, w) return 3 * x.shape[1] * x.shape[2] * w.shape[1] end,
      body = function(x, w) return x:matmul(w:t()) * 1 end,
    })
    local plain = register_op('tests::plain', { body = function(x) return x * 2 end })
    local graph = trace(function(a, b) return plain(op(a, b)) end, { T.zeros { 4, 6 },
      T.zeros { 5, 6 } }, { training = false, arg_names = { 'a', 'b' } })
    local nodes = graph:nodes()
    assert.same({ 'linear', '' }, { nodes[1].kind, nodes[2].kind })
    assert.equal(3 * 4 * 6 * 5, graph:flops(0))
    assert.equal('n k+, h k+ -> n h', graph:splits(0).annotation)
    assert.equal(4 * 5, graph:flops(1)) -- one per element
    assert.is_nil(graph:splits(1).annotation)
    assert.matches('node 2; expected 0 to 1', message(graph.flops, graph, 2), 1, true)
  end)

  it('may be one of a shared library', function()
    local report = verify.check('tests_library::cube', place)
    assert.same({}, report.problems)
    assert.equal(2, report.splits)
    assert.equal('a b -> a b', report.annotation)
  end)

  it('that is wrong is found', function()
    assert.matches('split of input 0 dim 1 into 2: the gradient of argument 2 differs by 1',
      table.concat(check('beside_unmarked').problems))
    local report = check 'wrong_split'
    assert.matches('split of input 0 dim 1 into 2: .* differs by', table.concat(report.problems))
    assert.equal(1, #report.problems)
    -- x² has the gradient 2 x g; x g is half of it.
    assert.matches('derivative: .* differs by 0.5', table.concat(check('wrong_backward').problems))
    assert.matches('result 1 differs between two calls: it is not pure',
      table.concat(check('counts').problems, '\n'))
  end)

  it('must be pure', function()
    assert.matches('%[annotate.noisy%] its body draws random numbers %(%w+::dropout%)',
      message(trace, own.noisy, { T.zeros { 2 } }, { training = false }))
    assert.matches('write', message(trace, own.writes, { T.zeros { 2 } }, { training = false }))
    local outside = T.ones { 2 }
    local op = register_op('tests::outside', { body = function(x) return x + outside end })
    assert.matches('its body uses a tensor made outside of it', message(trace, op,
      { T.zeros { 2 } }, { training = false }))
  end)

  it('is refused with mistakes', function()
    local function refused(name, spec) return message(register_op, name, spec) end
    local function body(x) return x end
    assert.matches("'swish' is not a name; expected 'library::operator'",
      refused('swish', { body = body }))
    assert.matches('aten::linear is an operator of the table', refused('aten::linear', {
      body = body }))
    assert.matches("unknown key 'anotation'", refused('tests::x', { anotation = 'a -> a' }))
    assert.matches("%[annotate.grammar%] 'a %-> a %+'", refused('tests::x', {
      annotation = 'a -> a +', body = body }))
    assert.matches('its body takes %.%.%.', refused('tests::x', {
      body = function(...) return ... end }))
    assert.matches("'S' is not a split; expected R, V or D", refused('tests::x', {
      body = body, rules = { { input = 0, dim = 0, inputs = { 'S' }, outputs = { 'R' } } } }))
    assert.matches("kind is 'lineal'; expected one of sum, linear, embedding, class_loss, experts, "
      .. 'attention',
      refused('tests::x', { body = body, kind = 'lineal' }), 1, true)
    assert.matches('backward is a number; expected a function',
      refused('tests::x', { body = body, backward = 1 }))
    assert.matches('has a backward but no body', refused('tests::x', { backward = body }))
    local function derived(backward)
      local op = register_op('tests::derived', { body = body, backward = backward })
      return message(trace, op, { T.zeros { 2, 3 } }, { training = false,
        arg_names = { 'x' } })
    end
    assert.matches('`backward` returned 2 gradients; expected 1, one per tensor argument',
      derived(function(g) return g, g end), 1, true)
    assert.matches('`backward` returned float32[2] as gradient 1; expected shape [2, 3]',
      derived(function(g) return g:sum(1) end), 1, true)
    assert.matches('none.so', refused('tests::x', { library = '/tmp/none.so' }))
    assert.matches("'tests::none' is not registered", message(verify.check, 'tests::none', place))
    assert.matches("'tests::two' has no `inputs`", message(verify.check, 'tests::two', place))
  end)
end)
