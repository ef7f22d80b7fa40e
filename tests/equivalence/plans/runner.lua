--- Runs cells of the plan matrix on rank threads.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'

local M = {}

local fields = { 'model', 'dtype', 'policy', 'plan', 'ranks', 'micro', 'config', 'evaluate',
  'bits' }

--- Cells as each rank takes them.
---@param list table[]
---@return string
function M.encode(list)
  local sent = {}
  for i, cell in ipairs(list) do
    sent[i] = {}
    for _, field in ipairs(fields) do sent[i][field] = cell[field] end
  end
  return base.json_encode(sent)
end

--- Keeps what the ranks gave: cell.results[r] is what rank r - 1 measured.
---@param list table[]
---@param by_rank table[][]
function M.keep(list, by_rank)
  for i, cell in ipairs(list) do
    cell.results = {}
    for r, results in ipairs(by_rank) do cell.results[r] = results[i] end
  end
end

--- Runs cells with equally many ranks in one session of rank threads.
---@param list table[]
function M.run(list)
  local by_rank = comm.run_local(list[1].ranks, 'tests.equivalence.plans.rank', M.encode(list))
  for r, text in ipairs(by_rank) do by_rank[r] = base.json_decode(text) end
  M.keep(list, by_rank)
end

--- The same; an error ends a session, so then each cell runs alone and keeps its own as cell.error.
--- Where none fails alone, all keep that of the session.
---@param list table[]
function M.run_all(list)
  local together, of_session = pcall(M.run, list)
  if together then return end
  local found = false
  for _, cell in ipairs(list) do
    local ok, err = pcall(M.run, { cell })
    if not ok then cell.error, found = tostring(err), true end
  end
  if found then return end
  for _, cell in ipairs(list) do
    cell.error = 'alone it runs; in a session with others: ' .. tostring(of_session)
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
