--- Functions that a policy has run around operators.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local message = require 'tests.lua.support.message'

local function run(case)
  return base.json_decode(comm.run_local(1, 'tests.lua.support.hooks_rank', case)[1])
end

describe('hooks of a policy', function()
  it('run around their operator in every micro-batch', function()
    local result = run 'both'
    local once = { 'before first [5,3] [4,3] [4]', 'after first [5,4]' }
    assert.same({ once[1], once[2], once[1], once[2] }, result.calls)
    assert.matches('a aten::linear#0: .- on 0, before tests.lua.support.hooks.before, after '
      .. 'tests.lua.support.hooks.after, meta first\n', result.text)
    assert.equal(result.text, result.again)
  end)

  it('do not run again with what is computed again', function()
    assert.same({ 'after  [5,4]', 'after  [5,4]' }, run('again').calls)
  end)

  it('are names of functions', function()
    assert.matches('before of a aten::linear is a function; expected the name of a function',
      message(run, 'value'))
    assert.matches("nothing is named 'no.such.hook'", message(run, 'unknown'))
    assert.matches("'tests.lua.support.hooks.nothing' is a number; expected a function",
      message(run, 'number'))
  end)
end)
