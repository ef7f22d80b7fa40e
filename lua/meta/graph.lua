---@meta nnscaler._C.graph
--- Graphs: operator calls in program order, with text, JSON, hashes and queries
--- (src/bind/graph.cpp). Ids of nodes and values, numbers of inputs and dims count from 0.

---@class nnscaler._C.graph
local graph = {}

--- An immutable graph.
---@class nnscaler.Graph
local Graph = {}

---@class nnscaler.GraphValue
---@field id integer
---@field name string
---@field shape integer[]
---@field dtype string
---@field role 'input'|'parameter'|'buffer'|'activation'|'constant'
---@field requires_grad boolean
---@field producer? integer node that makes it
---@field data? string bytes of a constant, row-major

---@class nnscaler.GraphNode
---@field id integer
---@field op string with namespace, as 'aten::linear'
---@field kind string what its record says it is, as 'linear'; '' where it has no kind of its own
---@field module string path of the module that called it
---@field ordinal integer among the calls of this operator in its module
---@field file string
---@field line integer
---@field source string the line of the model
---@field inputs integer[] values
---@field outputs integer[] values
---@field args table<string, any> by the schema's names; a tensor is { value = id }

---@class nnscaler.GraphSplit
---@field input integer tensor operand
---@field dim integer
---@field identifier string of the annotation
---@field length integer elements along it

---@class nnscaler.OperatorRow
---@field name string with namespace
---@field annotated boolean whether it can be split by its record
---@field random boolean
---@field view boolean
---@field constant boolean whether its results have no gradient
---@field mutates boolean
---@field examples string[] calls for `verify` and tests, as src/operators/record.h has them

--- The graph that `json` wrote; a state error where the text is malformed.
---@param text string
---@return nnscaler.Graph
function graph.from_json(text) end

--- All records of operators that models call, sorted by name.
---@return nnscaler.OperatorRow[] rows
function graph.ops() end

--- An annotation in its plain form; a plan error says where it is wrong.
---@param text string
---@return string plain
function graph.parse_annotation(text) end

--- The graph as text, one line a call.
---@param locations? boolean whether lines end in their place in the source, true by default
---@return string
function Graph:text(locations) end

--- The graph as JSON, which `from_json` reads.
---@return string
function Graph:json() end

--- Hash of operators, arguments, shapes, names and paths; places in the source do not count.
---@return string digits 16 hexadecimal digits
function Graph:hash() end

--- Hash of operators and paths without sizes: a plan is for all graphs that share it.
---@return string digits 16 hexadecimal digits
function Graph:structure() end

--- Where a later graph of the model differs first, in the words of its source.
---@param after nnscaler.Graph
---@return string|nil text nil where the exact hashes agree
function Graph:difference(after) end

--- Name of the model.
---@return string
function Graph:name() end

--- Whether the graph was traced for training.
---@return boolean
function Graph:training() end

--- All calls in program order; the position in the list is id + 1.
---@return nnscaler.GraphNode[]
function Graph:nodes() end

--- How a call may be split.
---@param node integer
---@return { annotation?: string, splits: nnscaler.GraphSplit[] } splits empty where it cannot be
function Graph:splits(node) end

--- Floating point operations of a call.
---@param node integer
---@return number|nil flops nil where the operator has no record
function Graph:flops(node) end

--- All values; the position in the list is id + 1.
---@return nnscaler.GraphValue[]
function Graph:values() end

--- What forward returns, in order: a tensor is { value = id }, tables stay tables.
---@return any[]
function Graph:outputs() end

--- Buffers that forward writes: their value, and the one that they take.
---@return { buffer: integer, value: integer }[]
function Graph:buffer_updates() end

--- Values of the samples, in the order of forward's arguments.
---@return nnscaler.GraphValue[]
function Graph:inputs() end

--- Values of the parameters, in the order of their first use.
---@return nnscaler.GraphValue[]
function Graph:parameters() end

--- Values of the buffers, in the order of their first use.
---@return nnscaler.GraphValue[]
function Graph:buffers() end

return graph
