--- Which calls of an edited program are those of the Program it was written from.
local align = require 'nnscaler.verify.align'

-- Calls as a Program has them, of texts 'operator place'.
local function calls(...)
  local list = {}
  for i, text in ipairs { ... } do
    local op, place = text:match '^(%S+) ?(%S*)$'
    list[i] = { op = op, place = place }
  end
  return list
end

-- The same calls as they ran, one a line, and the places of their text.
local function ran(...)
  local list, places = calls(...), {}
  for i, call in ipairs(list) do
    places[i] = call.place
    list[i] = { op = call.op, line = i, results = {} }
  end
  return list, places
end

-- Lines of the calls that were found, 0 where there is none.
local function found(want, got, places)
  local lines, by_call = {}, align.calls(want, got, places)
  for i in ipairs(want) do lines[i] = by_call[i] and by_call[i].line or 0 end
  return table.concat(lines, ' ')
end

describe('calls of a program that ran', function()
  it('are found where nothing was edited', function()
    assert.equal('1 2 3', found(calls('a x:1', 'b x:2', 'a x:1'), ran('a x:1', 'b x:2', 'a x:1')))
  end)

  it('are found beside one that was taken out', function()
    assert.equal('1 0 2 3', found(calls('a x:1', 'b x:2', 'c x:3', 'd x:4'),
      ran('a x:1', 'c x:3', 'd x:4')))
    assert.equal('1 2 0', found(calls('a x:1', 'b x:2', 'c x:3'), ran('a x:1', 'b x:2')))
  end)

  it('are found beside one that was put in', function()
    assert.equal('2 3', found(calls('a x:1', 'b x:2'), ran('n x:0', 'a x:1', 'b x:2')))
    assert.equal('1 3', found(calls('a x:1', 'b x:2'), ran('a x:1', 'b x:9', 'b x:2')))
  end)

  it('are found where another operator took the place of one', function()
    assert.equal('1 0 3', found(calls('a x:1', 'b x:2', 'c x:3'), ran('a x:1', 'n x:2', 'c x:3')))
  end)

  it('are found where the comment beside one has gone', function()
    assert.equal('1 2 3', found(calls('a x:1', 'b x:2', 'c x:3'), ran('a x:1', 'b', 'c x:3')))
  end)

  it('of repeated blocks are found in the block that they belong to', function()
    local block = { 'a x:1', 'b x:2', 'c x:3' }
    local want, got = {}, {}
    for _ = 1, 3 do
      for _, text in ipairs(block) do want[#want + 1] = text end
      for _, text in ipairs { 'a x:1', 'c x:3' } do got[#got + 1] = text end
    end
    assert.equal('1 0 2 3 0 4 5 0 6', found(calls(unpack(want)), ran(unpack(got))))
  end)
end)

describe('the place of a line', function()
  local function place(text, line) return align.places(text)[line] end

  it('stands beside it, or above', function()
    assert.equal('gpt.lua:30', place('local a = f()  -- gpt.lua:30  attn.c_attn', 1))
    assert.equal('gpt.lua:35', place('  -- gpt.lua:35  attn\n  local a = f(\n    x)', 2))
    assert.equal('gpt.lua:35', place('  -- gpt.lua:35  attn\n  local a = f(\n    x)', 3))
  end)

  it('is not that of the call before', function()
    assert.equal('', place('local a = f()  -- gpt.lua:30  attn.c_attn\nlocal b = g()', 2))
    assert.equal('', place('local b = g()', 1))
  end)
end)
