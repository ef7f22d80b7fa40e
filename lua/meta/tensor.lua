---@meta nnscaler._C.tensor
--- Tensors, operators as functions, modes as blocks, the scope of random numbers (src/tensor). What
--- `nnscaler.tensor` adds to tensors in Lua stands there.

---@class nnscaler._C.tensor
---@field methods table what `x:name(…)` finds; operators are added at their first call
---@field metatable table of all tensors
local C = {}

--- Beside the fields that lua/nnscaler/tensor/init.lua lists; `grad_pending` of a parameter, whose
--- gradient is an addend of this rank only, can be written and not read.
---@class nnscaler.Tensor
---@field grad_fn string|nil name of the autograd node that made it
---@field is_leaf boolean for autograd
---@field init { kind: string, a: number, b: number, c: number }|nil initialiser of a parameter
---@field path string|nil of a parameter: its name in the model
---@field whole integer[]|nil shape of the whole, of a parameter of which this rank holds a part
---@field start integer[]|nil where that part begins in the whole
---@field is_buffer boolean
---@field persistent boolean whether checkpoints hold the buffer
---@field materialized boolean whether it has elements
local Tensor = {}

---@class nnscaler.ParameterInit
---@field kind string 'constant', 'zeros', 'ones', 'normal', 'trunc_normal', 'uniform',
---  'orthogonal', 'eye' or 'buffer'
---@field value? number of 'constant', 0 by default
---@field mean? number of 'normal' and 'trunc_normal', 0 by default
---@field std? number 1 by default
---@field cut? number of 'trunc_normal': draws lie within cut deviations, 2 by default
---@field low? number of 'uniform', 0 by default
---@field high? number 1 by default
---@field gain? number of 'orthogonal', 1 by default
---@field compute? fun(): nnscaler.Tensor of 'buffer'

---@class nnscaler.ParameterSpec
---@field shape? integer[] needed without `data`
---@field data? nnscaler.Tensor its elements
---@field dtype? string 'float32' by default
---@field init? nnscaler.ParameterInit zeros by default
---@field requires_grad? boolean true by default for floating-point parameters
---@field buffer? boolean false by default
---@field persistent? boolean whether checkpoints hold the buffer, true by default
---@field path? string name in the model
---@field part_of? nnscaler.Tensor makes a part of this parameter, with `start` and `shape`
---@field start? integer[] where the part begins
---@field draw? boolean false: the part has no elements until it is given some

--- An operator as a function; a model error names operators like it where there is none.
---@param name string with namespace, as 'aten::add'
---@return fun(...): ...
function C.operator(name) end

--- Whether there is an operator.
---@param name string with namespace
---@return boolean
function C.has_operator(name) end

--- Schemas of an operator's overloads, in the order in which a call tries them.
---@param name string with namespace
---@return string[]
function C.schemas(name) end

--- Whether a value is a tensor of any kind.
---@param value any
---@return boolean
function C.is_tensor(value) end

--- Tensors that Lua holds.
---@return integer count
---@return integer bytes of their storages
function C.live() end

--- Memory that LibTorch holds on the CPU.
---@param reset? boolean whether the peak starts again from what is live
---@return integer live bytes
---@return integer peak bytes since the start or the last reset
function C.memory(reset) end

--- From here on a tensor of the CPU for which there is no room within so many bytes is an error.
---@param bytes integer of all threads of the process; 0: as much as the system gives
function C.limit_memory(bytes) end
--- Memory of the host that states rest in beside that of the device (compute_config.zero_offload).
---@param reset? boolean whether the peak starts again from what is live
---@return integer live bytes
---@return integer peak bytes since the start or the last reset
function C.host_memory(reset) end

--- A contiguous copy there.
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function C.host_copy(x) end

--- A copy there, laid out as the tensor is.
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function C.to_host(x) end

--- A copy on a device.
---@param x nnscaler.Tensor
---@param device string
---@return nnscaler.Tensor
function C.from_host(x, device) end

--- Drops what tensors hold at once; using them afterwards is an error. nil is skipped.
---@param ... nnscaler.Tensor|nil
function C.release(...) end

--- Whether a GPU can be used.
---@return boolean
---@return string reason why not; '' where it can
function C.has_cuda() end

--- How many GPUs can be used.
---@return integer
function C.cuda_count() end

--- Sets the GPU that 'cuda' means on this thread.
---@param index integer from 0
function C.set_cuda_device(index) end

--- A tensor of nested lists, a number or a boolean; a model error for ragged lists.
---@param values table|number|boolean
---@param dtype? string 'float32' by default, 'bool' for booleans
---@param device? string 'cpu' by default
---@return nnscaler.Tensor
function C.from_table(values, dtype, device) end

--- A generator of random numbers with a state of its own.
---@param seed integer
---@param device? string 'cpu' by default
---@return nnscaler.Generator
function C.generator(seed, device) end

--- Whether a text names a dtype.
---@param name string
---@return boolean
function C.is_dtype(name) end

--- Makes a lazy parameter or buffer, or a part of one; `materialize` draws its elements.
---@param spec nnscaler.ParameterSpec
---@return nnscaler.Tensor
function C.parameter(spec) end

--- Calls a function while autograd records nothing.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function C.no_grad(fn, ...) end

--- Calls a function while autograd records.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function C.enable_grad(fn, ...) end

--- Calls a function whose tensors never take part in autograd.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function C.inference_mode(fn, ...) end

--- Calls a function in which operators do not pass autograd at all, for generated programs.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function C.without_autograd(fn, ...) end

--- Inside `without_autograd`: calls a function with autograd, to differentiate one operator.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function C.with_autograd(fn, ...) end

--- Calls a function under LibTorch's autocast; a model error for other dtypes.
---@param dtype 'bfloat16'|'float16'
---@param device string as 'cpu'
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function C.autocast(dtype, device, fn, ...) end

--- Whether autograd records on this thread.
---@return boolean
function C.grad_enabled() end

--- Sets how many threads operators use; a usage error below 1.
---@param count integer
function C.set_num_threads(count) end

--- How many threads operators use.
---@return integer
function C.get_num_threads() end

--- Lets LibTorch use deterministic algorithms only.
---@param flag boolean
---@param warn_only? boolean whether an operator without one warns instead of failing
function C.set_deterministic(flag, warn_only) end

--- Enters a module: calls that follow are its.
---@param path string in the model
function C.push_module(path) end

--- Leaves the innermost module.
function C.pop_module() end

--- How many modules' forwards are running.
---@return integer
function C.module_depth() end

--- Path of the innermost module; '' in the root and outside of all modules.
---@return string
function C.module_path() end

--- Leaves modules after an error left forward early.
---@param depth? integer how many stay, 0 by default
function C.reset_modules(depth) end

--- Starts a new forward: calls are counted from 0 again.
function C.reset_ordinals() end

--- Counts a call of an operator in the innermost module.
---@param operator string with namespace and overload
---@return integer ordinal how many calls of it were there before in this forward
function C.next_ordinal(operator) end

--- Sets the counters that draws depend on; fields that are not given stay.
---@param counters { seed?: integer, step?: integer, micro?: integer }
function C.set_random(counters) end

--- The counters that draws depend on.
---@return { seed: integer, step: integer, micro: integer }
function C.get_random() end

--- Runs `work` with draws of its own: counters and counts of calls are as before afterwards.
---@generic T
---@param work fun(): T
---@return T
function C.apart(work) end

--- Which LibTorch this is.
---@return { version: string, folder: string, cpu_capability: string, config: string, isa: string,
---  isas: string[] } isa: instruction set of our kernels; isas: those that there are, widest first
function C.build_info() end

--- Which GPUs our kernels for CUDA were built for; opens their library, for which no GPU is needed.
---@return { architectures: string[], problem: string } architectures: 'sm_80', …; problem: why
---  there are none, or ''
function C.cuda_build() end

--- Has our kernels use another instruction set, in all threads. The environment variable
--- NNSCALER_ISA does so from the start.
---@param name string of `isas`; '' for the widest. A usage error names those that there are.
function C.choose_isa(name) end

--- The shape, or the length along one dimension; a model error names the dimensions there are.
---@param dim? integer negative from the end
---@return integer[]|integer
function Tensor:size(dim) end

--- Lets `data` of a parameter show the part of it that this rank holds.
---@param tensor nnscaler.Tensor
---@param start? integer[] where it begins in the whole, at 0 by default
function Tensor:_hold(tensor, start) end

--- Number of dimensions.
---@return integer
function Tensor:dim() end

--- Number of elements.
---@return integer
function Tensor:numel() end

--- Elements to go in memory from one index to the next, per dimension.
---@return integer[]
function Tensor:stride() end

--- Whether elements lie row-major without gaps.
---@return boolean
function Tensor:is_contiguous() end

--- Whether the dtype is a floating-point one.
---@return boolean
function Tensor:is_floating_point() end

--- The one element; a model error for more, and in a trace.
---@return number|boolean
function Tensor:item() end

--- All elements as nested lists; a model error in a trace and for complex numbers.
---@return table|number|boolean
function Tensor:tolist() end

--- Drops what the tensor holds at once; using it afterwards is an error.
function Tensor:release() end

--- Adds gradients to the leaves that the tensor depends on; a model error where it depends on none.
---@param gradient? nnscaler.Tensor of its shape; needed unless it has one element
---@param options? { retain_graph?: boolean, create_graph?: boolean }
function Tensor:backward(gradient, options) end

--- Says whether a leaf wants a gradient.
---@param flag? boolean true by default
---@return nnscaler.Tensor self
function Tensor:requires_grad_(flag) end

--- Keeps the gradient of a tensor that is not a leaf.
---@return nnscaler.Tensor self
function Tensor:retain_grad() end

--- Draws the elements of a parameter, a function of seed, path and element.
---@param seed integer
---@param device? string 'cpu' by default
---@return nnscaler.Tensor self
function Tensor:materialize(seed, device) end

--- The part of what `materialize` would draw.
---@param seed integer
---@param start integer[] where the part begins
---@param shape integer[] of the part
---@param device? string 'cpu' by default
---@return nnscaler.Tensor part
function Tensor:draw_part(seed, start, shape, device) end

--- `T.grad`: gradients of outputs (self: a tensor or a list) by inputs.
---@param inputs nnscaler.Tensor|nnscaler.Tensor[]
---@param options? { grad_outputs?: nnscaler.Tensor|nnscaler.Tensor[], retain_graph?: boolean,
---  create_graph?: boolean, allow_unused?: boolean }
---@return (nnscaler.Tensor|false)[] gradients of each input, false for none
function Tensor:_gradients(inputs, options) end

--- Of `<` and `<=`: raises a model error, since Lua makes a boolean of their results.
---@param other any
function Tensor:_refuse_order(other) end

--- Of `#`: raises a model error.
function Tensor:_refuse_length() end

return C
