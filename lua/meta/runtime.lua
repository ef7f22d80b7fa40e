---@meta nnscaler._C.runtime
--- What generated programs call beside operators (src/runtime).

---@class nnscaler._C.runtime
local runtime = {}

--- Drops what tensors hold at once; nil is skipped.
---@param ... nnscaler.Tensor|nil
function runtime.release(...) end

--- gradients[key] += x. The first x becomes the gradient itself, or moves to its home: what
--- `home(gradients, key)` of the table's metatable returns, if it is a tensor. Others are
--- released.
---@param gradients table<any, nnscaler.Tensor>
---@param key any
---@param x nnscaler.Tensor
function runtime.accumulate(gradients, key, x) end

--- The same for a tensor that others still read: it is copied, and never released.
---@param gradients table<any, nnscaler.Tensor>
---@param key any
---@param x nnscaler.Tensor
function runtime.accumulate_copy(gradients, key, x) end

--- Where the first addend of gradients[key] is to be written; nil where there is one already, or
--- the gradient has no home.
---@param gradients table<any, nnscaler.Tensor>
---@param key any
---@return nnscaler.Tensor|nil
function runtime.into(gradients, key) end

--- Bytes of first addends that this thread has copied to their homes.
---@return number bytes
function runtime.copied_bytes() end

--- A tensor of one dimension, and its parts one after another; elements are undefined.
---@param dtype string
---@param device string of tensors, or 'host' for the memory that states rest in
---@param shapes integer[][] of the parts
---@return nnscaler.Tensor all
---@return nnscaler.Tensor[] parts
function runtime.flat(dtype, device, shapes) end

--- A tensor of given elements; a state error where their number does not fit.
---@param bytes string row-major, little-endian
---@param dtype string
---@param shape integer[]
---@param device? string 'cpu' by default
---@return nnscaler.Tensor
function runtime.constant(bytes, dtype, shape, device) end

--- Calls a function without autograd: no tape, no version counters.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function runtime.run(fn, ...) end

--- Executes an operator again under autograd, for the gradients of its operands.
---@param operator string with namespace
---@param gradients nnscaler.Tensor|(nnscaler.Tensor|false)[] of its results, false for none
---@param needs boolean[] which operands want a gradient, in the order of the arguments
---@param ... any arguments of the call
---@return nnscaler.Tensor ... gradients of the operands that want one
function runtime.vjp(operator, gradients, needs, ...) end

--- Gives results a history in LibTorch's autograd; a usage error in backward for a second one, for
--- gradients of gradients, and where what backward reads was written.
---@param label string of the module, for messages
---@param backward fun(seeds: nnscaler.Tensor[]): (nnscaler.Tensor|false)[] gradients of the inputs
---@param inputs nnscaler.Tensor[]
---@param names string[] of the inputs, for messages
---@param results nnscaler.Tensor[]
---@param saved table nested tables of tensors that backward reads
---@return nnscaler.Tensor[] results
function runtime.connect(label, backward, inputs, names, results, saved) end

return runtime
