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
---@field backward? function of a composite: gradients of its tensor arguments, nil for none
---@field infer? fun(...): ... of { shape =, dtype = } and plain values: those of the results
---@field flops? fun(...): number
---@field kind? string 'linear', …
---@field rules? nnscaler.SplitRule[]

--- A program that PyTorch exported, open for reading.
---@class nnscaler.ExportedProgram
local ExportedProgram = {}

---@class nnscaler.ExportedInput
---@field role 'parameter'|'buffer'|'constant'|'number'|'input'
---@field name string
---@field persistent boolean of a buffer: whether checkpoints hold it
---@field value any of a number
---@field dtype? string of a tensor
---@field shape? integer[] of what is stored
---@field sizes? integer[] of an input, -1 where any size will do
---@field requires_grad? boolean
---@field place? string equal for names of one tensor
---@field record? string of the archive

---@class nnscaler.ExportedTree: { [integer]: nnscaler.ExportedTree }
---@field kind 'leaf'|'list'|'table'|'nothing'
---@field keys? string[] of a table

---@class nnscaler.ExportedAbout
---@field name string
---@field torch string version that exported it
---@field trains? string the first call that tells training from evaluation
---@field inputs nnscaler.ExportedInput[]
---@field updates { output: integer, buffer: string }[] outputs from 1
---@field results integer[] outputs from 1
---@field arguments nnscaler.ExportedTree how forward takes its arguments
---@field returned nnscaler.ExportedTree how it returns results
---@field argument_names string[]

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

--- Opens a program that `torch.export.save` wrote; a usage error where it cannot be read.
---@param path string
---@return nnscaler.ExportedProgram
function trace.open_program(path) end

--- What the program takes, holds and returns.
---@return nnscaler.ExportedAbout
function ExportedProgram:about() end

--- Operators that it calls, sorted: `recorded` says whether graphs know them, `there` whether
--- LibTorch has them.
---@return { op: string, count: integer, place: string, recorded: boolean, there: boolean }[]
function ExportedProgram:operators() end

--- The elements of a weight, buffer or constant, in memory of their own.
---@param name string
---@return nnscaler.Tensor
function ExportedProgram:values(name) end

--- Carries out its calls, through the door that a trace records.
---@param inputs any[] as `about` lists them
---@param path string of the module that it is
---@param from? string dtype in whose place arguments get another one
---@param to? string that dtype; needed with `from`
---@return any[] outputs
function ExportedProgram:run(inputs, path, from, to) end

--- Schemas of LibTorch's registry that graphs may hold, sorted (src/operators/schemas.inc).
---@return string[]
function trace.schemas() end

return trace
