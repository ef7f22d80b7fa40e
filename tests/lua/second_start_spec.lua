--- Starts from written files: a second start traces and takes the rest from disk; where it must do
--- more, the log says why.
local base = require 'nnscaler._C.base'
local cases = require 'tests.lua.support.start_cases'
local comm = require 'nnscaler._C.comm'
local runs = require 'tests.lua.support.runs'

-- What a start says in the log.
local function said(f)
  local lines, log = {}, base.log
  base.log = function(level, name, text) lines[#lines + 1] = text return log(level, name, text) end
  local ok, result = pcall(f)
  base.log = log
  if not ok then error(result, 0) end
  return table.concat(lines, '\n'), result
end

local function ranks(count, a)
  local results = comm.run_local(count, 'tests.lua.support.start_rank', base.json_encode(a))
  for r, text in ipairs(results) do
    results[r] = base.json_decode(text)
    assert.is_nil(results[r].failed)
  end
  return results
end

-- What a record was made from, and its content.
local function parts(path)
  local head, content = base.file_read(path):match '^([^\n]*)\n(.*)$'
  return base.json_decode(head), content
end

describe('a second start from written files', function()
  local folder
  before_each(function() folder = runs.folder() end)
  after_each(function() runs.remove(folder) end)

  local function again(a)
    a.folder = folder
    return cases.start(a)
  end
  local function nothing_done(got)
    assert.same({ 1, 0, 0, 0 }, { got.traces, got.policies, got.lowered, got.written })
  end

  it('traces once, and runs no lowering and no writing', function()
    local first = again {}
    assert.equal(1, first.lowered)
    assert.equal(3, first.written) -- the program, what it was made from, the graph
    local second = again {}
    nothing_done(second)
    assert.equal(first.loss, second.loss)
    assert.same(first.weights, second.weights)
  end)

  it('does so for the evaluation graph too', function()
    local first, second = again { evaluate = true }, again { evaluate = true }
    assert.same({ 2, 0, 0, 0 }, { second.traces, second.policies, second.lowered, second.written })
    assert.equal(first.evaluated, second.evaluated)
  end)

  for _, case in ipairs {
    { name = 'dp', policy = 'dp' }, { name = 'fsdp', policy = 'fsdp' },
    { name = 'a policy of the recipe', dim = 0, plan_ngpus = 2 },
    { name = 'tp', policy = 'tp', plan_ngpus = 2 },
  } do
    it('takes plan and programs of two ranks under ' .. case.name, function()
      local a = { folder = folder, policy = case.policy, dim = case.dim, evaluate = true,
        plan_ngpus = case.plan_ngpus }
      local first, second = ranks(2, a), ranks(2, a)
      for r = 1, 2 do
        assert.same({ 2, 0, 0, 0 }, { second[r].traces, second[r].policies, second[r].lowered,
          second[r].written })
        assert.equal(first[r].loss, second[r].loss)
        assert.equal(first[r].evaluated, second[r].evaluated)
        assert.same(first[r].weights, second[r].weights)
      end
    end)
  end

  it('takes them where each rank has a disk of its own', function()
    local a = { folder = folder, dim = 0, plan_ngpus = 2, apart = true }
    local first, second = ranks(2, a), ranks(2, a)
    for r = 1, 2 do
      assert.same({ 1, 0, 0, 0 }, { second[r].traces, second[r].policies, second[r].lowered,
        second[r].written })
      assert.same(first[r].weights, second[r].weights)
    end
  end)

  it('lowers an evaluation graph that is not there in the homes of the first', function()
    local a = { folder = folder, policy = 'fsdp' }
    ranks(2, a)
    a.evaluate = true
    local second = ranks(2, a)
    local fresh = ranks(2, { folder = folder .. '/fresh', policy = 'fsdp', evaluate = true })
    for r = 1, 2 do assert.equal(fresh[r].evaluated, second[r].evaluated) end
  end)

  it('says which line of the model changed', function()
    again {}
    local text, got = said(function() return again { act = 'tanh' } end)
    assert.matches('gencode0.lua: lowered anew: model changed: start_cases.lua:%d+: '
      .. 'aten::tanh in place of aten::relu', text)
    assert.same({ 1, 1 }, { got.traces, got.lowered })
    nothing_done(again { act = 'tanh' })
  end)

  it('says that shapes changed', function()
    again {}
    local text = said(function() return again { rows = 6 } end)
    assert.matches('lowered anew: shapes changed: training {x=float32%[4,4%]} in the file, '
      .. 'training {x=float32%[6,4%]} now', text)
  end)

  it('says which setting changed', function()
    again {}
    local text = said(function() return again { policy = 'fsdp' } end)
    assert.matches('lowered anew: settings changed: pas_policy %(not set in the file, fsdp now%)',
      text)
  end)

  it('runs the policy again when its source or what it sees has changed', function()
    local a = { folder = folder, dim = 0, plan_ngpus = 2 }
    ranks(2, a)
    a.dim = 1
    local got = ranks(2, a)
    assert.equal(1, got[1].policies)
    assert.equal(0, got[2].policies)
    assert.is_true(got[1].lowered > 0)
    assert.equal(0, ranks(2, a)[1].policies)
  end)

  it('lowers anew from an edited record, and never trusts it', function()
    local first = again {}
    local path = folder .. '/Net/gencode0.json'
    local good = base.file_read(path)
    for _, edit in ipairs {
      function(t) return t:sub(1, #t / 2) end,
      function(t) return (t:gsub('aten::relu', 'aten::tanh')) end,
      function() return '[]' end,
      function() return '{"kind": "nnscaler.lowered"}' end,
      function() return '[]\n[]' end,
      function(t) return (t:gsub('^[^\n]*', '7')) end,
      function() return '' end,
    } do
      base.file_write(path, edit(good), 'test')
      local text, got = said(function() return again {} end)
      assert.matches('gencode0.lua: lowered anew: file edited: gencode0.json', text)
      assert.equal(1, got.lowered)
      assert.same(first.weights, got.weights)
      assert.equal(good, base.file_read(path))
    end
  end)

  it('refuses content with a right hash that is not a program', function()
    again {}
    local path = folder .. '/Net/gencode0.json'
    local record, content = parts(path)
    content = content:gsub('"rank":0', '"rank":7')
    record.hash = base.hash(content)
    base.file_write(path, base.json_encode(record) .. '\n' .. content, 'test')
    local text = said(function() return again {} end)
    assert.matches('lowered anew: file edited: gencode0.json: .*rank 7 of 1', text)
  end)

  it('lowers anew after another version or build', function()
    again {}
    local path = folder .. '/Net/gencode0.json'
    for _, change in ipairs { { 'version', '9.9' }, { 'build', 'abc' } } do
      local record, content = parts(path)
      record[change[1]] = change[2]
      base.file_write(path, base.json_encode(record) .. '\n' .. content, 'test')
      local text, got = said(function() return again {} end)
      assert.matches('lowered anew: version changed: ', text)
      assert.equal(1, got.lowered)
    end
  end)

  it('runs an edited program as it is, without lowering', function()
    again {}
    local path = folder .. '/Net/gencode0.lua'
    base.file_write(path, base.file_read(path) .. '-- mine\n', 'test')
    local text, got = said(function() return again {} end)
    assert.matches('gencode0.lua was edited by hand: it runs as it is', text)
    nothing_done(got)
  end)

  it('refuses a changed model under match as before, and can still tell the change', function()
    again {}
    for _ = 1, 2 do
      local text = said(function()
        local ok, e = pcall(again, { act = 'tanh', reuse = 'match' })
        assert.is_false(ok)
        assert.matches('codegen.match', tostring(e))
      end)
      assert.matches('model changed: start_cases.lua:%d+', text)
    end
    local text = said(function() return again { act = 'tanh' } end)
    assert.matches('model changed: start_cases.lua:%d+', text)
  end)

  it('writes all anew under override', function()
    again {}
    local got = again { reuse = 'override' }
    assert.equal(1, got.lowered)
  end)
end)
