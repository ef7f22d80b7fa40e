-- Graphs in Lua: the JSON form, queries, how calls may be split.
local C = require 'nnscaler._C.graph'

local function value(id, shape, role, name, producer)
  return ('{"id":%d,"shape":%s,"dtype":"float32","role":"%s","requires_grad":false,"name":"%s",'
    .. '"producer":%d,"data":""}')
    :format(id, shape, role, name, producer)
end

local text = ([=[{"format":"nnscaler graph","version":1,"name":"Net","training":true,
  "values":[%s,%s,%s],
  "nodes":[{"id":0,"op":"aten::linear","outputs":[2],"module":"fc","ordinal":0,
    "args":[["input",{"value":0}],["weight",{"value":1}],["bias",null]],
    "file":"net.lua","line":3,"source_text":"return self.fc(x)",
    "grad_enabled":true,"autocast":"","recompute_region":-1}],
  "inputs":[0],"parameters":[1],"buffers":[],"outputs":[{"value":2}],"buffer_updates":[],
  "aliases":[]}]=])
  :format(value(0, '[4,6]', 'input', 'x', -1), value(1, '[8,6]', 'parameter', 'fc.weight', -1),
    value(2, '[4,8]', 'activation', '', 0))

describe('a graph', function()
  local graph = C.from_json(text)

  it('answers queries with plain tables', function()
    assert.equal('Net', graph:name())
    assert.is_true(graph:training())
    local node = graph:nodes()[1]
    assert.equal('aten::linear', node.op)
    assert.equal('fc', node.module)
    assert.same({ 0, 1 }, node.inputs)
    assert.same({ 2 }, node.outputs)
    assert.same({ value = 1 }, node.args.weight)
    assert.is_nil(node.args.bias)
    assert.equal('fc.weight', graph:parameters()[1].name)
    assert.same({ 4, 8 }, graph:values()[3].shape)
  end)

  it('comes back from its JSON form with the same hashes', function()
    local again = C.from_json(graph:json())
    assert.equal(graph:hash(), again:hash())
    assert.equal(graph:structure(), again:structure())
    assert.equal(graph:text(), tostring(again))
  end)

  it('tells how a call may be split', function()
    local splits = graph:splits(0)
    assert.equal('* k+, n k+ -> * n', splits.annotation)
    assert.same({ input = 0, dim = 0, identifier = 'a', length = 4 }, splits.splits[1])
    assert.equal(4, #splits.splits)
    local ok, err = pcall(graph.splits, graph, 7)
    assert.is_false(ok)
    assert.matches('[graph.splits] node 7; expected 0 to 0', tostring(err), 1, true)
  end)

  it('is refused when damaged', function()
    local ok, err = pcall(C.from_json, (text:gsub('"outputs":%[2%]', '"outputs":[9]')))
    assert.is_false(ok)
    assert.equal('state', err.kind)
    assert.matches("[graph.from_json] graph 'Net': node 0 (aten::linear) defines value %9",
      tostring(err), 1, true)
  end)
end)

describe('an annotation', function()
  it('is read by the grammar of the planner', function()
    assert.equal('m k+, k+ n -> m n', C.parse_annotation 'm  k+,k+ n->m n')
    local ok, err = pcall(C.parse_annotation, 'a (b')
    assert.is_false(ok)
    assert.equal('plan', err.kind)
    assert.matches("'a (b': the end at position 4; expected an identifier or ')'",
      tostring(err), 1, true)
  end)
end)

describe('verifying an operator', function()
  local verify = require 'nnscaler.verify.op'
  local maker = require('nnscaler.verify.examples').maker(3)

  it('runs every split of a call', function()
    local report = verify.check('aten::linear', { maker.f(4, 6), maker.f(8, 6) })
    assert.same({}, report.problems)
    assert.equal(4, report.splits)
    assert.equal('* k+, n k+ -> * n', report.annotation)
  end)

  it('finds a split that changes the result', function()
    -- No difference is below zero: any split is reported.
    local report = verify.check('aten::relu', { maker.f(4, 6) }, { tolerance = -1 })
    assert.equal(2, #report.problems)
    assert.matches("'a b -> a b' split on a (input 0, dim 0): output 0 (dims) differs by 0",
      report.problems[1], 1, true)
  end)

  it('names what is not an operator', function()
    local ok, err = pcall(verify.operator, 'relu')
    assert.is_false(ok)
    assert.matches("[verify.op] 'relu' is not an operator; expected a name as 'aten::linear'",
      tostring(err), 1, true)
  end)
end)
