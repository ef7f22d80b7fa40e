-- Small jobs in a folder of their own, for tests of what people ran into.
local assert = require 'luassert'
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local M = {}

M.yaml = [[
model: { type: mlp, args: { sizes: [4, 8, 2] } }
dataset: { type: random_samples, args: { size: 64, width: 4, classes: 2 } }
micro_batch_size: 4
max_train_steps: 300
optimizer: sgd
threads: 1
gen_savedir: g
checkpoint: { no_save: true }
]]

---@class Case
---@field folder string where its runs start
---@field write fun(name: string, text: string): string the path of a file in it
---@field run fun(arguments: string, before?: string): string, integer `nnscaler run` there, ended
---  after two minutes; what it said and its exit code
---@field refused fun(words: string[], arguments: string, before?: string): string it ends with exit
---  code 2 and says these words, with no trace of Lua

--- Makes a folder; call `remove` in a teardown.
---@return Case case, fun() remove
function M.new()
  local folder, remove = shell.folder()
  local case = { folder = folder }
  function case.write(name, text)
    base.file_write(folder .. '/' .. name, text)
    return folder .. '/' .. name
  end
  function case.run(arguments, before)
    return shell.run(("cd '%s' && %s timeout 120 '%s' run %s"):format(folder, before or '',
      shell.binary, arguments))
  end
  function case.refused(words, arguments, before)
    local said, code = case.run(arguments, before)
    for _, word in ipairs(words) do assert.matches(word, said, 1, true) end
    assert.is_nil(said:find('stack traceback', 1, true), said)
    assert.is_nil(said:find('bad argument', 1, true), said)
    assert.equal(2, code, said)
    return said
  end
  return case, remove
end

--- Reads a file of one JSON object a line.
---@param path string
---@return table[]
function M.rows(path)
  local rows = {}
  for line in base.file_read(path):gmatch '[^\n]+' do rows[#rows + 1] = base.json_decode(line) end
  return rows
end

return M
