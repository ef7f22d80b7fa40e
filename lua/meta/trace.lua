---@meta nnscaler._C.trace
--- The recorder behind the door of operators, operators of the user, and what `verify` asks of
--- single calls (src/trace).

---@class nnscaler._C.trace
local trace = {}

---@class nnscaler.TraceSpec
---@field name string of the model
---@field training? boolean true by default
---@field loss? boolean whether forward returns a loss first, true by default; else results are free
---@field model table first argument of `forward`
---@field forward function
---@field args { n: integer, [integer]: any } the sample: tensors, plain values, tables of them
---@field arg_names string[]
---@field parameters { name: string, tensor: nnscaler.Tensor }[]
---@field aliases { alias: string, name: string }[] of tied parameters

---@class nnscaler.RegisteredOperator
---@field name string with namespace
---@field annotation? string|string[]|fun(...): string|string[]
---@field body? function a composite over tensors, recorded as one call
---@field infer? fun(...): ... of { shape =, dtype = } and plain values: those of the results
---@field flops? fun(...): number
---@field kind? string 'linear', …
---@field rules? nnscaler.SplitRule[]

---@class nnscaler.SplitRule
---@field input integer tensor operand, from 0
---@field dim integer that is cut
---@field inputs string[] what becomes of each operand: 'R', 'V', 'D0', …
---@field outputs string[] what becomes of each result
---@field modify? fun(arguments: table, parts: integer, part: integer): table

--- Runs a model once on inputs without data; a model error names the line that a graph cannot hold.
---@param spec nnscaler.TraceSpec
---@return nnscaler.Graph
---@return string[] warnings
---@return { name: string, node: integer }[] anchors that the model set
function trace.record(spec) end

--- A function that a model under trace must not call, and that raises a model error.
---@param what string that gives each run another value
---@param hint string what to do instead
---@return function
function trace.refusal(what, hint) end

--- Calls a function; in a trace its calls are one region that backward executes again.
---@param fn fun(...): ...
---@param ... any its arguments
---@return any ... its results
function trace.recompute(fn, ...) end

--- Marks this place of a model under trace.
---@param name string
function trace.anchor(name) end

--- Whether a trace is running.
---@return boolean
function trace.tracing() end

--- What the record of an operator says of a call, which does not run.
---@param operator string with namespace
---@param ... any arguments of the call, with real tensors
---@return { op: string, types: table[], random: boolean, annotation?: string, splits: table[] }
---@return true told marks the result as a description
function trace.probe(operator, ...) end

--- Runs one part of a call that is cut.
---@param part { input: integer, dim: integer, parts: integer, part: integer } all from 0
---@param operator string with namespace
---@param ... any arguments of the whole call
---@return any ... results of the part
function trace.run_part(part, operator, ...) end

--- Adds the record of an operator of the user; a usage error for an unknown kind or split.
---@param spec nnscaler.RegisteredOperator
function trace.register_op(spec) end

--- Records a call of a composite as one node; only while a trace runs.
---@param name string with namespace
---@param names string[] of the arguments
---@param ... any the arguments
---@return nnscaler.Tensor ... results
function trace.composite(name, names, ...) end

--- Names of the operators that scripts of this thread have registered.
---@return string[]
function trace.registered() end

--- Opens a shared library whose operators register themselves with LibTorch; a usage error where it
--- does not open.
---@param path string
function trace.load_library(path) end

--- Schemas of LibTorch's registry that graphs may hold, sorted (src/operators/schemas.inc).
---@return string[]
function trace.schemas() end

return trace
