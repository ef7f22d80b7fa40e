-- lua/meta declares every function of the C modules, for editors and readers: compared with the
-- functions of the running binary in both directions.
local base = require 'nnscaler._C.base'
local stubs = require 'tests.lua.support.stubs'
local tensor = require 'nnscaler.tensor'

local read = {} -- per file of lua/meta
for _, path in ipairs(stubs.files 'lua/meta') do
  read[path] = stubs.read(base.file_read(path), path)
end

-- Functions and fields of all stubs, by class.
local function all(what)
  local found = {}
  for _, file in pairs(read) do
    for class, list in pairs(file[what]) do
      assert(not found[class], class .. ' stands in two files')
      found[class] = list
    end
  end
  return found
end

describe('lua/meta', function()
  it('has one file per C module, which tells its name', function()
    require 'nnscaler._C.tensor'
    local expected, found = {}, {}
    for name in pairs(package.preload) do
      local short = name:match '^nnscaler%._C%.(.*)$'
      if short then expected['lua/meta/' .. short .. '.lua'] = name end
    end
    for path, file in pairs(read) do found[path] = file.meta end
    assert.same(expected, found)
  end)

  it('has a stub of every function of the binary, and no other', function()
    local functions = stubs.of_binary()
    local stubbed, list, count = all 'functions', {}, 0
    for class, known in pairs(functions) do
      for _, line in ipairs(stubs.differences(class, stubbed[class] or {}, known)) do
        list[#list + 1] = line
      end
      for _ in pairs(known) do count = count + 1 end
    end
    for _, line in ipairs(stubs.differences('lua/meta', stubbed, functions)) do
      list[#list + 1] = line
    end
    assert.same({}, list)
    assert.is_true(count >= 230, count .. ' functions')
  end)

  it('lists what else is in a module', function()
    local _, fields = stubs.of_binary()
    local found = all 'fields'
    for module, expected in pairs(fields) do
      local listed = { unpack(found[module]) }
      table.sort(listed)
      assert.same(expected, listed, module)
    end
  end)

  it('lists properties that a tensor has', function()
    local x = tensor.tensor { 1, 2 }
    local fields = all 'fields'['nnscaler.Tensor']
    assert.is_true(#fields >= 9)
    for _, name in ipairs(fields) do
      assert.has_no.errors(function() return x[name] end, name)
    end
  end)

  it('has @param and @return lines that fit each signature', function()
    local declared = stubs.declared()
    local list = {}
    for _, functions in pairs(all 'functions') do
      for _, stub in pairs(functions) do
        for _, line in ipairs(stubs.faults(stub, function(name) return declared[name] end)) do
          list[#list + 1] = line
        end
      end
    end
    table.sort(list)
    assert.same({}, list)
  end)

  it('is not part of the library that the binary holds', function()
    if os.getenv 'NNSCALER_LUA_PATH' then return pending('the library is read from a folder') end
    local ok, message = pcall(require, 'meta.base')
    assert.is_false(ok)
    assert.matches("no module 'meta.base' in the nnscaler library", tostring(message), 1, true)
  end)
end)

describe('the comparison of stubs', function()
  local text = [[
---@meta nnscaler._C.none

---@class nnscaler._C.none
local none = {}

--- Adds.
---@param a integer
---@param b? integer 1 by default
---@return integer
function none.add(a, b) end

---@param x nnscaler.Unheard of
function none.say(y) end

--- Waits.
---@param first? integer
---@param second integer
---@return
function none.wait(first, second) end
]]
  local functions = stubs.read(text, 'none.lua').functions['nnscaler._C.none']
  local function faults(name)
    return stubs.faults(functions[name], function() return false end)
  end

  it('finds what only one side has', function()
    assert.same({ 'none: no stub of gone', 'none: there is no say' },
      stubs.differences('none', functions, { add = true, wait = true, gone = true }))
  end)

  it('finds signatures that their comments do not fit', function()
    assert.same({}, faults 'add')
    assert.same({
      'none.lua:13: does not say what it does',
      'none.lua:13: argument 1 is y, @param says x',
      'none.lua:13: nnscaler.Unheard is not declared',
    }, faults 'say')
    assert.same({
      'none.lua:19: second is needed behind one that may be left out',
      'none.lua:19: a result has no type',
    }, faults 'wait')
  end)
end)
