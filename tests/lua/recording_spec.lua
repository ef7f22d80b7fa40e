--- Recordings of runs: how parts make a whole, what is refused.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local forms = require 'nnscaler.verify.forms'
local message = require 'tests.lua.support.message'
local recording = require 'nnscaler.verify.recording'
local runs = require 'tests.lua.support.runs'

local function part(rank, start, data, addend, addends)
  return { rank = rank, start = start, shape = data.shape, addend = addend or 0,
    addends = addends or 1, tensor = 'x', dtype = data.dtype, read = function() return data end }
end

local function row(...) return T.tensor({ { ... } }, { dtype = 'float64' }) end

describe('parts of a value', function()
  it('are put together: cuts, addends, what several ranks hold', function()
    local parts = { part(0, { 0, 0 }, row(1, 2), 0, 2), part(1, { 0, 0 }, row(10, 20), 1, 2),
      part(2, { 0, 2 }, row(3)), part(3, { 0, 2 }, row(3)) }
    assert.same({ { 11, 22, 3 } }, recording.join(parts, { 1, 3 }):tolist())
    assert.equal(nil, recording.join({ parts[1], parts[2] }, { 1, 3 }))
    assert.equal(nil, recording.join({ parts[1], parts[3] }, { 1, 3 }))
  end)

  it('are compared each with its place in the whole', function()
    local whole = row(11, 22, 3)
    local form = { parts = { part(0, { 0, 0 }, row(1, 2), 0, 2),
      part(1, { 0, 0 }, row(10, 20), 1, 2), part(2, { 0, 2 }, row(3)),
      part(3, { 0, 2 }, row(3.5)) } }
    local gap, at = forms.compare(form, whole)
    assert.equal(0.5, gap)
    assert.equal(3, at.rank)
    form.parts[2] = part(1, { 0, 0 }, row(10, 21), 1, 2)
    gap, at = forms.compare(form, whole)
    assert.equal(1, gap)
    assert.equal(0, at.rank)
  end)

  it('that a program does not make are infinitely far', function()
    local missing = part(1, { 0, 2 }, row(3))
    missing.tensor = nil
    local gap, at = forms.compare({ parts = { missing } }, row(1, 2, 3))
    assert.equal(math.huge, gap)
    assert.equal(1, at.rank)
  end)

  it('differ by nothing where both are not finite, by everything where one is', function()
    local inf, nan = math.huge, 0 / 0
    assert.equal(0, forms.gap(row(inf, nan, 1), row(inf, nan, 1)))
    assert.equal(inf, forms.gap(row(nan), row(1)))
    assert.equal(inf, forms.gap(row(1, 2), row(1)))
    assert.equal(0, forms.gap(T.zeros({ 0 }), T.zeros({ 0 })))
  end)
end)

describe('a recording', function()
  local folder
  before_each(function()
    folder = runs.folder()
    base.make_folder(folder)
  end)
  after_each(function() runs.remove(folder) end)

  local function refused(info, pattern)
    if info then base.file_write(folder .. '/recording.json', info) end
    assert.matches(pattern, message(function() recording.open(folder) end))
  end

  it('of another format is refused', function()
    refused('{"format": 7, "nnscaler": "0.2", "version": "0.2", "ranks": 1}',
      "%[record%.read%] '.*' is a recording of format 7, by nnscaler 0%.2; expected format 1")
  end)

  it('that cannot be read is refused', function()
    refused(nil, "%[record%.read%] '.*/recording%.json' cannot be read: ")
    refused('{"format": ', "%[record%.read%] '.*/recording%.json' cannot be read: ")
    refused('7', "%[record%.read%] '.*/recording%.json' cannot be read: it holds no table")
  end)

  it('without a step of all ranks is refused', function()
    base.file_write(folder .. '/step.1.0.json', '{}')
    refused('{"format": 1, "ranks": 2}',
      "%[record%.read%] '.*' holds no step that all 2 ranks have written")
  end)

  it('that says nothing of its ranks is refused', function()
    for _, ranks in ipairs { '', ', "ranks": 0', ', "ranks": "two"', ', "ranks": 1e300' } do
      refused('{"format": 1' .. ranks .. '}', "%[record%.read%] '.*' says of its ranks")
    end
  end)
end)

describe('steps of two runs', function()
  local function info(micro, global, units, first)
    return { micro_batch_size = micro, global_batch_size = global, units = units,
      first = first or 0 }
  end
  local function refused(a, b)
    return message(function() recording.check_alike(a, b) end)
  end

  it('take the same samples', function()
    recording.check_alike(info(4, 8, 1), info(4, 8, 2))
    local said = refused(info(4, 4, 1), info(4, 8, 2))
    assert.matches('%[diff%.batch%] global_batch_size is 4 in A and 8 in B; expected the same',
      said)
    assert.matches('set micro_batch_size=4 global_batch_size=8 for both', said)
    said = refused(info(2, 4, 2), info(3, 9, 3))
    assert.matches('global_batch_size is 4 in A and 9 in B', said)
    assert.matches('set micro_batch_size=2 global_batch_size=12 for both', said)
    assert.matches('micro_batch_size is 4 in A and 2 in B', refused(info(4, 8, 1), info(2, 8, 1)))
  end)

  it('have the same number', function()
    assert.matches('%[diff%.first%] A begins after 0 steps and B after 10; expected the same',
      refused(info(4, 8, 1), info(4, 8, 1, 10)))
  end)
end)
