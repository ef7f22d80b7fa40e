-- The Lua machine: loading, strict globals, errors with their stacks, arguments of C++ functions.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'

-- A function of C++ that raises an error of ours.
local function unreadable() base.file_read('/no/such/file', 'test.read') end

describe('loading', function()
  it('takes text', function()
    assert.equal(3, load('return 1 + 2')())
    assert.equal(3, load(coroutine.wrap(function()
      coroutine.yield 'return 1'
      coroutine.yield ' + 2'
    end))())
    assert.equal(7, load('return x', '=x', 't', { x = 7 })())
  end)

  it('refuses bytecode however it comes', function()
    local code = string.dump(function() return 1 end)
    for _, loader in ipairs { load, loadstring } do
      local chunk, message = loader(code, '@made.lua')
      assert.is_nil(chunk)
      assert.equal("'made.lua' is Lua bytecode; expected source text", message)
    end
    local path = os.tmpname()
    base.file_write(path, code)
    local chunk, message = loadfile(path)
    assert.is_nil(chunk)
    assert.matches('is Lua bytecode', message)
    assert.error_matches(function() dofile(path) end, 'is Lua bytecode; expected source text')
    os.remove(path)
  end)

  it('says where the text is wrong', function()
    local chunk, message = load('local x =\n  }', '@r.lua')
    assert.is_nil(chunk)
    assert.equal("r.lua:2: unexpected symbol near '}'", message)
  end)

  it('works inside a coroutine', function()
    local value = coroutine.wrap(function()
      local made = load('return { 5 }')()
      return made[1], require('nnscaler.sorted')
    end)
    assert.equal(5, (value()))
  end)

  it('lists where a module was looked for', function()
    local said = "no file '%./no/such/module%.lua'"
    assert.error_matches(function() require 'no.such.module' end, said)
    assert.error_matches(function() require 'nnscaler._C.nothing' end,
      "no C%+%+ module 'nnscaler._C.nothing'")
  end)
end)

describe('strict globals', function()
  it('refuse a misspelt name', function()
    assert.error_matches(load 'return lyaers', "undeclared global 'lyaers' read")
  end)
  it('refuse an accidental one', function()
    assert.error_matches(load 'count = 3', "undeclared global 'count' written; write 'local count'")
  end)
end)

describe('errors', function()
  it('of C++ are tables with kind, message and the Lua stack', function()
    local ok, err = pcall(unreadable)
    assert.is_false(ok)
    assert.equal('usage', err.kind)
    assert.equal("[test.read] cannot read '/no/such/file': No such file or directory",
      tostring(err))
    assert.matches("script_spec.lua:%d+: in function <?'?", err.traceback)
  end)

  it('keep the stack of the coroutine that raised them', function()
    local function deep() unreadable() end
    local step = coroutine.wrap(function()
      coroutine.yield(1)
      deep()
    end)
    step()
    local ok, err = pcall(step)
    assert.is_false(ok)
    assert.matches("in function 'deep'", err.traceback)
  end)

  it('of plain Lua in a wrapped coroutine keep its stack too', function()
    local function deep() error 'boom' end
    local ok, err = pcall(coroutine.wrap(function() deep() end))
    assert.is_false(ok)
    assert.matches('script_spec.lua:%d+: boom', tostring(err))
    assert.matches("in function 'deep'", err.traceback)
  end)

  it('that are values of the user pass through coroutines as they are', function()
    local mine = {}
    local ok, err = pcall(coroutine.wrap(function() error(mine) end))
    assert.is_false(ok)
    assert.equal(mine, err)
  end)

  it('keep their stack when they are raised again', function()
    local ok, err = pcall(function()
      local _, inner = pcall(fail, 'data', 'a.b', 'wrong')
      error(inner, 0)
    end)
    assert.is_false(ok)
    assert.matches("in function 'pcall'", err.traceback)
  end)

  it('of arguments name the argument', function()
    assert.error_matches(function() base.hash({}) end, 'bad argument #1 to .*string expected')
  end)
end)
