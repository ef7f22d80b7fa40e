-- Tables and pictures of docs/ that say what stands in the source: each is compared with it.
local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.plan'
local policies = require 'nnscaler.policies'

local function page(name) return base.file_read('docs/' .. name) end

-- The part of a page below a heading, up to the next heading of any level.
local function section(text, heading)
  local _, stop = text:find('\n#+ ' .. heading .. '\n')
  assert(stop, 'no heading ' .. heading)
  return text:sub(stop + 1):match '^(.-)\n#' or text:sub(stop + 1)
end

-- The first column of the first table of a text, without its head.
local function first_column(text)
  local names = {}
  local rows = text:match '\n(|.-)\n\n' or text:match '\n(|.*)$'
  for row in (rows .. '\n'):gmatch '|(.-)\n' do names[#names + 1] = row:match '^%s*(.-)%s*|' end
  table.remove(names, 1) -- the head
  table.remove(names, 1) -- the rule
  return names
end

local function bare(names)
  local list = {}
  for i, name in ipairs(names) do list[i] = name:match '^`(.*)`$' or name end
  table.sort(list)
  return list
end

local function sorted(list)
  local copy = { unpack(list) }
  table.sort(copy)
  return copy
end

-- The names that an error offers: `…: the schedules are a, b, c`.
local function offered(text)
  local list = {}
  for name in text:match 'are ([^\n]+)':gmatch '[%w_]+' do list[#list + 1] = name end
  return list
end

describe('docs/policies.md', function()
  it('lists the policies that there are', function()
    assert.same(sorted(policies.builtin), bare(first_column(section(page 'policies.md',
      'Policies of ours'))))
  end)
end)

describe('docs/pipelines.md', function()
  it('lists the schedules that there are', function()
    local ok, message = pcall(core.time_line, 'none', 2, 4, 1)
    assert.is_false(ok)
    local names = { 'custom' } -- of the user; `infer` is what evaluation runs
    for _, name in ipairs(offered(tostring(message))) do
      if name ~= 'infer' then names[#names + 1] = name end
    end
    assert.same(sorted(names), bare(first_column(section(page 'pipelines.md', 'Schedules'))))
  end)

  -- The drawn line of a rank: a part as its name and one `=` for each further character of time.
  local function drawn(text)
    local parts = {}
    for token in text:gmatch '%S+' do
      if token ~= '.' then parts[#parts + 1] = token:gsub('=+$', '') end
    end
    return parts
  end

  local pictures = { -- title, schedule, ranks, micro-batches, chunks, whether weights are apart
    { 'GPipe', 'gpipe', 4, 4, 1 }, { '1F1B', '1f1b', 4, 8, 1 },
    { 'Interleaved 1F1B', '1f1b_interleaved', 2, 4, 2 }, { 'ZB-H1', 'zb_h1', 4, 8, 1, true },
    { 'ZBV', 'zbv', 2, 4, 2, true }, { 'Chimera', 'chimera', 4, 4, 1 },
  }
  for _, case in ipairs(pictures) do
    local title, name, ranks, micros, chunks, apart = unpack(case)
    it('draws ' .. title .. ' as it runs', function()
      local text = section(page 'pipelines.md', 'Schedules')
      local _, start = text:find('**' .. title .. '**', 1, true)
      text = text:sub(start + 1)
      local line = core.time_line(name, ranks, micros, chunks, 1, 1, 1)
      for r = 0, ranks - 1 do
        local shown = drawn(text:match('\n    rank ' .. r .. ' | ([^\n]*)\n'))
        local stages = {}
        for _, part in ipairs(line[r + 1]) do stages[part.stage] = true end
        local several = next(stages, next(stages)) ~= nil
        local expected = {}
        for i, part in ipairs(line[r + 1]) do
          expected[i] = several and ('%s%d:%d'):format(part.kind, part.stage, part.micro)
            or part.kind .. part.micro
        end
        assert.same(expected, shown)
      end
      local makespan = 0
      for _, parts in ipairs(line) do
        for _, part in ipairs(parts) do makespan = math.max(makespan, part.stop) end
      end
      assert.equal(makespan, tonumber(text:match 'makespan (%d+)'))
      assert.equal(apart or false, text:match '^.-makespan':find(' W%d') ~= nil)
    end)
  end
end)

describe('docs/launch.md', function()
  it('lists the back ends that there are', function()
    local core_job = require 'nnscaler._C.job'
    local choices = core_job.document():match '`comm%.backend` | (.-) | `auto`'
    local names = {}
    for name in choices:gmatch '%w+' do
      if name ~= 'auto' then names[#names + 1] = name end
    end
    assert.same(sorted(names), bare(first_column(section(page 'launch.md', 'Back ends'))))
  end)

  it('names variables that the source reads', function()
    local source = {}
    for _, folder in ipairs { 'src/launch', 'src/cli', 'src/comm', 'src/tensor' } do
      for _, file in ipairs(base.list_folder(folder)) do
        if file:match '%.cpp$' or file:match '%.h$' then
          source[#source + 1] = base.file_read(folder .. '/' .. file)
        end
      end
    end
    source = table.concat(source)
    local count = 0
    for name in section(page 'launch.md', 'Variables'):gmatch '`(%u[%u%d_]+)[=%d]*`' do
      count = count + 1
      assert.is_truthy(source:find('"' .. name .. '"', 1, true), name)
    end
    assert.is_true(count >= 12)
  end)
end)

describe('docs/glossary.md', function()
  it('is in order, and each word is used in another page', function()
    local words = first_column('\n' .. page 'glossary.md')
    assert.same(sorted(words), words)
    local text = {}
    for _, name in ipairs(base.list_folder 'docs') do
      if name:match '%.md$' and name ~= 'glossary.md' then text[#text + 1] = page(name):lower() end
    end
    text = table.concat(text)
    for _, word in ipairs(words) do
      assert.is_truthy(text:find(word:lower(), 1, true), word)
    end
  end)
end)

describe('README.md', function()
  it('points at files that are there', function()
    local count = 0
    local list = section(base.file_read 'README.md', 'Start reading here')
    for file in list:gmatch '\n| `([^`]+)` |' do
      count = count + 1
      assert.equal('file', base.file_exists(file), file)
    end
    assert.equal(10, count)
  end)
end)

-- Where the page is old: NNSCALER_UPDATE=1 build/nnscaler test tests/lua/docs_spec.lua
describe('docs/api.md', function()
  it('is what the comments of the library say', function()
    local text = require('tests.lua.support.api_page').text()
    if os.getenv 'NNSCALER_UPDATE' then base.file_write('docs/api.md', text) end
    assert.equal(text, page 'api.md')
  end)
end)
