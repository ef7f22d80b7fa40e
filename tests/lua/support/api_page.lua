--- docs/api.md, written from the LuaCATS comments of the library's public modules: of each function
--- its arguments with types, its results and its text.
local base = require 'nnscaler._C.base'

local M = {}

-- Folders and files of lua/nnscaler that users program against, in the order of the page.
local rooms = {
  { 'The module itself', 'init.lua' }, { 'Tensors', 'tensor' }, { 'Functions', 'functional' },
  { 'Layers', 'nn' }, { 'Models', 'models' }, { 'Data', 'data' }, { 'Optimizers', 'optim' },
  { 'Learning rates', 'schedules' }, { 'Hooks', 'hooks' },
  { 'Trainer', 'trainer/init.lua' }, { 'Policies', 'policies' },
  { 'Parallel modules', 'library' }, { 'Operators of your own', 'register_op.lua' },
}

local function files_of(room)
  local root = 'lua/nnscaler/'
  if room:match '%.lua$' then return { root .. room } end
  local list = {}
  for _, name in ipairs(base.list_folder(root .. room)) do
    if name:match '%.lua$' then list[#list + 1] = root .. room .. '/' .. name end
  end
  table.sort(list)
  return list
end

local function lines_of(text)
  local list = {}
  for line in text:gmatch '([^\n]*)\n' do list[#list + 1] = line end
  return list
end

-- A type as people write it, and what follows it: 'nnscaler.Tensor [n]' gives 'Tensor', '[n]'.
local function type_and_text(text)
  local depth, stop = 0, #text
  for i = 1, #text do
    local c = text:sub(i, i)
    if c:match '[{(<]' then depth = depth + 1 end
    if c:match '[})>]' then depth = depth - 1 end
    local joins = text:sub(i + 1):match '^[|:]' or text:sub(1, i - 1):match '[|:,]$'
    if c == ' ' and depth == 0 and not joins then
      stop = i - 1
      break
    end
  end
  return (text:sub(1, stop):gsub('nnscaler%.nn%.', 'nn.'):gsub('nnscaler%.', '')),
    text:sub(stop + 1):match '^%s*#?%s*(.-)%s*$'
end

-- What a comment block says: text, parameters and results.
local function read_block(block)
  local said = { text = {}, params = {}, results = {}, fields = {} }
  local last
  for _, line in ipairs(block) do
    local tag, rest = line:match '^%-%-%-%s*@(%w+)%s*(.*)$'
    if tag == 'param' then
      local name, what = rest:match '^(%S+)%s*(.*)$'
      last = { name = name, what = what }
      said.params[#said.params + 1] = last
    elseif tag == 'return' then
      last = { what = rest }
      said.results[#said.results + 1] = last
    elseif tag == 'class' then
      said.class, last = rest, nil
    elseif tag == 'field' then
      local name, what = rest:match '^(%S+)%s*(.*)$'
      last = { name = name, what = what }
      said.fields[#said.fields + 1] = last
    elseif tag then
      last = nil
    elseif last then -- a tag goes on in the next line
      last.what = last.what .. ' ' .. line:match '^%-%-%-%s*(.-)%s*$'
    else
      said.text[#said.text + 1] = line:match '^%-%-%-%s?(.-)%s*$'
    end
  end
  said.text = table.concat(said.text, ' ')
  return said
end

local function signature(name, said)
  local params, notes, results = {}, {}, {}
  for i, p in ipairs(said.params) do
    local kind, note = type_and_text(p.what)
    params[i] = ('%s: %s'):format(p.name, kind)
    if note ~= '' then notes[#notes + 1] = ('`%s`: %s'):format(p.name:gsub('?$', ''), note) end
  end
  for i, r in ipairs(said.results) do
    local kind, note = type_and_text(r.what)
    results[i] = kind
    if note ~= '' then notes[#notes + 1] = ('returns %s'):format(note) end
  end
  local text = ('`%s(%s)%s`'):format(name, table.concat(params, ', '),
    #results > 0 and ' → ' .. table.concat(results, ', ') or '')
  return text, notes
end

-- Entries of a file: { name, said } of each documented function, and classes with fields.
local function entries_of(text)
  local entries, block, class = {}, {}, nil
  for _, line in ipairs(lines_of(text)) do
    if line:match '^%-%-%-' then
      block[#block + 1] = line
    else
      local owner, mark, name = line:match '^function ([%w_]+)([.:])([%w_.:]+)%('
      local said = #block > 0 and read_block(block) or nil
      if said and said.class and #said.fields > 0 then
        entries[#entries + 1] = { class = said.class, said = said }
      elseif said and said.class and said.text ~= '' then
        entries[#entries + 1] = { class = said.class, said = said }
      end
      if said and said.class then class = said.class:match '^[%w_.]+' end
      if name and said and (said.text ~= '' or #said.params > 0 or #said.results > 0) then
        local spelled = owner == 'M' and name or nil
        if owner ~= 'M' then
          spelled = ((class or owner):match '[%w_]+$') .. mark .. name
        end
        entries[#entries + 1] = { name = spelled, said = said }
      end
      block = {}
    end
  end
  return entries
end

local function module_of(path)
  return (path:match '^lua/(.-)%.lua$':gsub('/init$', ''):gsub('/', '.'))
end

local function intro_of(text)
  local list = {}
  for _, line in ipairs(lines_of(text)) do
    if not line:match '^%-%-%-' or line:match '^%-%-%-%s*@' then break end
    list[#list + 1] = line:match '^%-%-%-%s?(.-)%s*$'
  end
  return table.concat(list, '\n')
end

--- The page as it should be.
---@return string
function M.text()
  local out = { '# The Lua library\n',
    'Written from the comments of the source (`lua/nnscaler`) by `tests/lua/docs_spec.lua`, which',
    'also compares it. Arguments that end in `?` may be left out.\n' }
  for _, room in ipairs(rooms) do
    out[#out + 1] = '## ' .. room[1] .. '\n'
    for _, path in ipairs(files_of(room[2])) do
      local text = base.file_read(path)
      local entries = entries_of(text)
      if #entries > 0 then
        out[#out + 1] = ('### `%s`\n'):format(module_of(path))
        local intro = intro_of(text)
        if intro ~= '' then out[#out + 1] = intro .. '\n' end
        for _, entry in ipairs(entries) do
          if entry.class then
            out[#out + 1] = ('- **%s**%s'):format((entry.class:gsub('nnscaler%.', '')),
              entry.said.text ~= '' and ': ' .. entry.said.text or '')
            for _, field in ipairs(entry.said.fields) do
              local kind, note = type_and_text(field.what)
              out[#out + 1] = ('  - `%s: %s`%s'):format(field.name, kind,
                note ~= '' and ' ' .. note or '')
            end
          else
            local spelled, notes = signature(entry.name, entry.said)
            out[#out + 1] = ('- %s%s'):format(spelled,
              entry.said.text ~= '' and ': ' .. entry.said.text or '')
            if #notes > 0 then out[#out + 1] = '  (' .. table.concat(notes, '; ') .. ')' end
          end
        end
        out[#out + 1] = ''
      end
    end
  end
  return table.concat(out, '\n')
end

return M
