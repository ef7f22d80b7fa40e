--- Functions around operators: they note what they were called with.
local M = { calls = {} }

local function note(when)
  return function(meta, ...)
    local shapes = {}
    for i = 1, select('#', ...) do
      shapes[i] = '[' .. table.concat((select(i, ...)).shape, ',') .. ']'
    end
    table.insert(M.calls, ('%s %s %s'):format(when, meta, table.concat(shapes, ' ')))
  end
end

M.before, M.after = note 'before', note 'after'
M.nothing = 3

return M
