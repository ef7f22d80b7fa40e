--- A region whose activations are not kept for backward but computed again.
local C = require 'nnscaler._C.trace'

--- Calls fn(…). In a traced model backward recomputes what it did; elsewhere this is a plain call.
---@param fn function
---@return any ... what fn returns
return function(fn, ...) return C.recompute(fn, ...) end
