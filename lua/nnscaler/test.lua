--- Runs specs in busted's style inside this process: describe, it, before_each, after_each, setup,
--- teardown, finally, pending, with luassert's assert, spy, stub and mock. A spec file is loaded
--- with these names in its environment; strict globals stay in force for everything else.

local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'

local M = {}

-- A skip travels from `pending` inside a test to the runner as an error value of its own.
local Skip = {}

--- Lists the spec files of a folder (recursively) or the file itself, in sorted order.
local function collect(path, files)
  local what = base.file_exists(path)
  if not what then
    fail('usage', 'test.find', ("no file or folder '%s'"):format(path))
  elseif what == 'file' then
    files[#files + 1] = path
    return
  end
  for _, name in ipairs(base.list_folder(path)) do
    local child = path .. '/' .. name
    if base.file_exists(child) == 'folder' then
      collect(child, files)
    elseif name:find('_spec%.lua$') then
      files[#files + 1] = child
    end
  end
end

-- Keeps the frames of the spec and what it called, not those of this runner and of luassert.
local function shorten(traceback)
  local lines = {}
  for line in traceback:gmatch('[^\n]+') do
    if line:find('nnscaler/test.lua', 1, true) or line:find("in function 'attempt'") then break end
    if not line:find('luassert', 1, true) and not line:find('^stack traceback') then
      lines[#lines + 1] = line
    end
  end
  return table.concat(lines, '\n')
end

local function on_error(err)
  if type(err) == 'table' and getmetatable(err) == Skip then return err end
  local traceback = type(err) == 'table' and rawget(err, 'traceback')
  if type(traceback) ~= 'string' then traceback = debug.traceback('', 2) end
  return { text = tostring(err), traceback = shorten(traceback) }
end

local function attempt(f) return xpcall(f, on_error) end

local Run = {}
Run.__index = Run

function Run:report(name, err)
  self.failed = self.failed + 1
  print(('FAIL  %s\n%s'):format(name, (err.text:gsub('^', '      '):gsub('\n', '\n      '))))
  if err.traceback ~= '' then print((err.traceback:gsub('\t', '        '))) end
end

function Run:skip(name, reason)
  self.skipped = self.skipped + 1
  print(('SKIP  %s%s'):format(name, reason and ': ' .. reason or ''))
end

local function run_hooks(list)
  for _, hook in ipairs(list) do
    local ok, err = attempt(hook)
    if not ok then return false, err end
  end
  return true
end

-- Runs one test with the before_each of all enclosing blocks outside in, after_each inside out.
function Run:test(block, name, body)
  local chain, enclosing = {}, block
  while enclosing do
    table.insert(chain, 1, enclosing)
    enclosing = enclosing.parent
  end
  local ok, err = true, nil
  for _, b in ipairs(chain) do
    if ok then ok, err = run_hooks(b.before_each) end
  end
  local cleanup
  self.finally = function(f) cleanup = f end
  if ok then ok, err = attempt(body) end
  if cleanup then
    local done, cleanup_err = attempt(cleanup)
    if ok and not done then ok, err = false, cleanup_err end
  end
  for i = #chain, 1, -1 do
    local done, after_err = run_hooks(chain[i].after_each)
    if ok and not done then ok, err = false, after_err end
  end
  if ok then
    self.passed = self.passed + 1
    if self.verbose then print('ok    ' .. name) end
  elseif getmetatable(err) == Skip then
    self:skip(name, err.reason)
  else
    self:report(name, err)
  end
end

-- Whether a test below this block is selected: setup of other blocks is not worth its time.
function Run:wanted(block)
  for _, child in ipairs(block.children) do
    if child.children then
      if self:wanted(child) then return true end
    elseif not self.filter or child.name:find(self.filter) then
      return true
    end
  end
  return false
end

function Run:block(block)
  if not self:wanted(block) then return end
  local ok, err = run_hooks(block.setup)
  if not ok then
    if getmetatable(err) == Skip then
      self:skip(block.name, err.reason)
    else
      self:report(block.name .. ' (setup)', err)
    end
  else
    for _, child in ipairs(block.children) do
      if child.children then
        self:block(child)
      elseif not self.filter or child.name:find(self.filter) then
        if child.body then
          self:test(block, child.name, child.body)
        else
          self:skip(child.name)
        end
      end
    end
  end
  ok, err = run_hooks(block.teardown)
  if not ok then self:report(block.name .. ' (teardown)', err) end
end

local function new_block(name, parent)
  return {
    name = name, parent = parent, children = {},
    setup = {}, teardown = {}, before_each = {}, after_each = {},
  }
end

--- Loads a spec: its describe blocks run at once and note tests, which run after.
function Run:file(path)
  local root = new_block(path)
  local current = root
  local running = false

  local env = {
    assert = require 'luassert', spy = require 'luassert.spy', stub = require 'luassert.stub',
    mock = require 'luassert.mock', match = require 'luassert.match',
  }
  local function full(name) return current == root and name or current.name .. ' ' .. name end
  function env.describe(name, body)
    local block = new_block(full(name), current)
    table.insert(current.children, block)
    current = block
    body()
    current = block.parent
  end
  env.context, env.insulate, env.expose = env.describe, env.describe, env.describe
  function env.it(name, body)
    if running then fail('usage', 'test.it', "'it' was called inside a test") end
    table.insert(current.children, { name = full(name), body = body })
  end
  env.test, env.spec = env.it, env.it
  function env.pending(reason)
    if running then error(setmetatable({ reason = reason }, Skip), 0) end
    table.insert(current.children, { name = full(reason) })
  end
  function env.finally(f) self.finally(f) end
  for _, when in ipairs { 'setup', 'teardown', 'before_each', 'after_each' } do
    env[when] = function(f) table.insert(current[when], f) end
  end
  env.strict_setup, env.lazy_setup = env.setup, env.setup
  env.strict_teardown, env.lazy_teardown = env.teardown, env.teardown

  local clock = base.clock()
  local passed, failed = self.passed, self.failed
  local ok, err = attempt(function()
    local chunk, message = loadfile(path)
    if not chunk then fail('usage', 'test.load', message) end
    setfenv(chunk, setmetatable(env, { __index = _G, __newindex = _G }))()
  end)
  if not ok then
    self:report(path, err)
  else
    running = true
    self:block(root)
  end
  collectgarbage()  -- tensors of one file must not press on the next
  passed, failed = self.passed - passed, self.failed - failed
  if passed + failed > 0 then
    print(('%-48s %4d passed%s  %.2f s'):format(
      path, passed, failed > 0 and (', %d failed'):format(failed) or '', base.clock() - clock))
  end
end

---@class nnscaler.test.Opts
---@field paths string[] folders and files
---@field filter? string Lua pattern; only tests whose full name matches run
---@field verbose? boolean name every test that passed

--- Runs all specs below the paths; returns how many tests passed, failed and were skipped.
---@param opts nnscaler.test.Opts
---@return integer passed, integer failed, integer skipped
function M.run(opts)
  local files = {}
  for _, path in ipairs(opts.paths) do collect((path:gsub('(.)/+$', '%1')), files) end
  if #files == 0 then
    fail('usage', 'test.find', 'no spec below ' .. table.concat(opts.paths, ', '),
      "a spec is a file whose name ends in '_spec.lua'")
  end
  local run = setmetatable({
    passed = 0, failed = 0, skipped = 0, filter = opts.filter, verbose = opts.verbose,
  }, Run)
  for _, path in ipairs(files) do run:file(path) end
  return run.passed, run.failed, run.skipped
end

return M
