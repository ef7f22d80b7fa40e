--- Hand-written loops as people start them: the example prints on any number of ranks what it does
--- on one, and those of docs/library.md run.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'

local function numbers(more, processes)
  local arguments = 'examples/library/loop.lua steps=3 ' .. more
  local out, code
  if processes then
    out, code = shell.run(launchers.by_name.mpirun(processes, arguments, 100))
  else
    out, code = shell.nnscaler(arguments)
  end
  assert.equal(0, code, out)
  local list = {}
  for loss, norm in out:gmatch 'loss (%S+)  gnorm (%S+)' do
    list[#list + 1] = tonumber(loss)
    list[#list + 1] = tonumber(norm)
  end
  return list
end

describe('the loop of the library', function()
  it('prints the same on one rank, on rank threads and in processes', function()
    local want = numbers ''
    assert.equal(6, #want)
    for _, case in ipairs {
      { 'ranks=2' }, { 'ranks=2 plan=1' }, { 'ranks=4 plan=2' }, { '', 2 }, { 'plan=1', 2 },
    } do
      local got = numbers(case[1], case[2])
      assert.equal(6, #got)
      for i, x in ipairs(got) do
        assert.is_true(math.abs(x - want[i]) <= 2e-5 * math.max(1, want[i]), case[1])
      end
    end
  end)
end)

describe('docs/library.md', function()
  local folder, remove = shell.folder()
  teardown(remove)
  local expected = { ['loop.lua'] = '^20\t.*\n100\t', ['wrapped.lua'] = '^10\t.*\n20\t',
    ['end2end.lua'] = '\n20\t.*\ninferred\t4' }
  for name, text in base.file_read('docs/library.md'):gmatch '```lua file=([%w._]+)\n(.-)```' do
    it('has a script that runs on four ranks: ' .. name, function()
      local there
      text, there = text:gsub('nnscaler%.init%(%)', 'nnscaler.init { ranks = 4 }')
      assert.equal(1, there)
      base.file_write(folder .. '/' .. name, text)
      local said, code = shell.nnscaler(name .. ' 2>/dev/null', ('cd %s &&'):format(folder))
      assert.equal(0, code, said)
      assert.matches(expected[name], said)
      expected[name] = nil
    end)
  end
  it('has such scripts', function() assert.is_nil(next(expected)) end)
end)
