--- A job that is trained several times, in other ways each, and must learn the same.
local assert = require 'luassert'
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local M = {}

---@class Training
---@field folder string
---@field arguments fun(name: string, more: string): string of `nnscaler`: a run that has this name
---@field rows fun(name: string): table[] its metrics, a row a step
---@field remove fun()

--- Rows of a file of metrics.
---@param path string
---@return table[]
function M.metrics(path)
  local list = {}
  for line in base.file_read(path):gmatch '[^\n]+' do list[#list + 1] = base.json_decode(line) end
  return list
end

--- Keeps checkpoints, programs and metrics of runs of a job in a folder of its own.
---@param job string recipe and parameters
---@return Training
function M.new(job)
  local folder, remove = shell.folder()
  local function arguments(name, more)
    local at = folder .. '/' .. name
    return ('run %s checkpoint.save_dir=%s gen_savedir=%s.gen --metrics %s.jsonl %s')
      :format(job, at, at, at, more)
  end
  local function rows(name) return M.metrics(('%s/%s.jsonl'):format(folder, name)) end
  return { folder = folder, arguments = arguments, rows = rows, remove = remove }
end

--- Losses and norms agree to 1e-10.
---@param want table[]
---@param got table[]
function M.near(want, got)
  assert.is_true(#want > 0)
  assert.equal(#want, #got)
  for i, row in ipairs(want) do
    for _, key in ipairs { 'train_loss', 'gnorm', 'val_loss' } do
      if row[key] then
        local off = math.abs(row[key] - got[i][key]) / row[key]
        assert.is_true(off <= 1e-10, ('step %d: %s differs by %.3g'):format(i, key, off))
      end
    end
  end
end

return M
