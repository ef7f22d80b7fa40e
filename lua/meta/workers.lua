---@meta nnscaler._C.workers
--- Threads with Lua states of their own that make micro-batches ahead (src/data/bind_workers.cpp).

---@class nnscaler._C.workers
local workers = {}

---@class nnscaler.Workers
local Workers = {}

--- Starts workers. Each requires `module`, which returns function (argument) → function (n) → text,
--- list of tensors; micro-batch n is made by worker n / stride mod count.
---@param count integer 1 to 256
---@param stride integer numbers are asked for in steps of it
---@param depth integer micro-batches that each makes ahead
---@param module string
---@param argument string
---@return nnscaler.Workers
function workers.start(count, stride, depth, module, argument) end

--- Micro-batch n; raises what its worker raised.
---@param n integer
---@return string code
---@return nnscaler.Tensor[] tensors
function Workers:get(n) end
