--- Runs cells of the plan matrix on rank threads.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'

local M = {}

local fields = { 'model', 'dtype', 'policy', 'plan', 'ranks', 'micro', 'config', 'evaluate' }

--- Runs cells with equally many ranks in one session; cell.results[r] is what rank r - 1 measured.
---@param list table[]
function M.run(list)
  local sent = {}
  for i, cell in ipairs(list) do
    sent[i] = {}
    for _, field in ipairs(fields) do sent[i][field] = cell[field] end
  end
  local by_rank = comm.run_local(list[1].ranks, 'tests.equivalence.plans.rank',
    base.json_encode(sent))
  for _, cell in ipairs(list) do cell.results = {} end
  for r, text in ipairs(by_rank) do
    for i, result in ipairs(base.json_decode(text)) do list[i].results[r] = result end
  end
end

--- The same; an error ends a session, so then each cell runs alone and keeps its own as cell.error.
---@param list table[]
function M.run_all(list)
  if pcall(M.run, list) then return end
  for _, cell in ipairs(list) do
    local ok, err = pcall(M.run, { cell })
    if not ok then cell.error = tostring(err) end
  end
end

--- What is wrong with a cell that has run, or nil.
---@param cell table
---@return string|nil
function M.problem(cell)
  if cell.error then return cell.error end
  for r, result in ipairs(cell.results) do
    if #result.bad > 0 then
      return ('rank %d:\n  %s\n%s'):format(r - 1, table.concat(result.bad, '\n  '), result.plan)
    end
  end
end

return M
