---@meta nnscaler._C.train
--- What the trainer does with many tensors at one time (src/runtime/train.cpp).

---@class nnscaler._C.train
local train = {}

--- Multiplies gradients in place, and takes the norm of all of them together in float64.
---@param gradients nnscaler.Tensor[]
---@param scale number 1 leaves them as they are
---@return number norm 2-norm after scaling
function train.scale_and_norm(gradients, scale) end

--- Multiplies gradients in place.
---@param gradients nnscaler.Tensor[]
---@param factor number
function train.scale(gradients, factor) end

--- Replaces in the list those gradients that do not lie in memory as their parameter does, or that
--- share memory with one before.
---@param parameters nnscaler.Tensor[]
---@param gradients nnscaler.Tensor[] changed
function train.align(parameters, gradients) end

--- Copies parts of tensors into a packed one, or back.
---@param packed nnscaler.Tensor of one dimension
---@param first integer element of it from which offsets count
---@param parts { offset: integer, dim: integer, start: integer, length: integer }[]
---@param tensors (nnscaler.Tensor|false)[] of each part the tensor that it is of; false: left out
---@param back boolean from the packed tensor to the parts
function train.copy_parts(packed, first, parts, tensors, back) end

--- Hash of dtype, shape and elements of a tensor.
---@param tensor nnscaler.Tensor
---@return string digits 16 hexadecimal digits
function train.fingerprint(tensor) end

return train
