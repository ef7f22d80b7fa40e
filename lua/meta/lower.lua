---@meta nnscaler._C.lower
--- Programs of one rank and of all: what they hold as text, JSON and Lua, and what they tell
--- (src/bind/lower.cpp, skeleton.cpp).

---@class nnscaler._C.lower
local lower = {}

--- An immutable program of a rank.
---@class nnscaler.Program
local Program = {}

--- The programs of all ranks, lowered once for each class of devices.
---@class nnscaler.Skeleton
local Skeleton = {}

---@class nnscaler.LowerOptions
---@field device? string 'cpu' by default
---@field plan? nnscaler.Plan one device by default
---@field embedded? boolean a module inside a hand-written model: its results have gradients
---@field first? nnscaler.Skeleton of the first graph under the plan, in whose homes weights stay
---@field step? boolean whether the step of the optimizer stands in it; true by default
---@field set_mb? number MiB of gradients that are summed together at most, 25 by default
---@field rank? integer 0 by default
---@field sights? boolean whether to keep what `Skeleton:seen` tells

---@class nnscaler.ProgramTensor
---@field name string
---@field shape integer[] what this rank holds
---@field dtype string
---@field whole? integer[] shape of the whole, where the rank holds a part
---@field start? integer[] where the part begins
---@field data? string bytes of a constant

---@class nnscaler.ProgramParameter: nnscaler.ProgramTensor
---@field reduce? integer[] ranks whose gradients are summed
---@field holders integer ranks that hold this part of the gradient once it is summed
---@field zero integer which states rest in shards, as in PlanInfo; where that is not 0:
---@field over? integer[] ranks among which they are cut
---@field dim? integer along which
---@field length? integer of the piece that is used here along it
---@field owner? integer the one of `over`, from 0, that has all of it
---@field scatter? boolean whether the step scatters the gradient
---@field gradient? integer[] shape of the gradient, where that alone rests in a shard
---@field addends integer of its gradient a micro-batch; 0: the loss does not depend on it

---@class nnscaler.ProgramBuffer: nnscaler.ProgramTensor
---@field decay? number of a running average: the share of what it was before

---@class nnscaler.ProgramSegment
---@field name string of its function in the generated text
---@field kind 'F'|'B'|'W' forward, backward, gradients of weights
---@field stage integer

---@class nnscaler.ProgramSegments: { [integer]: nnscaler.ProgramSegment }
---@field last_stage integer of the pipeline
---@field tags integer of messages that a micro-batch takes

---@class nnscaler.SentTraffic what a rank sends
---@field segment string 'forward', …; 'step': sums of gradients, once per step
---@field op string 'all_reduce', 'send', …
---@field ranks integer of the group; 0: point to point
---@field calls integer
---@field bytes integer payload, with the padding of gathers and scatters
---@field weights boolean whether it is of weights that rest in shards

---@class nnscaler.ProgramMemory
---@field in_flight integer most micro-batches of a stage that wait for their backward
---@field parameters integer bytes
---@field gradients integer bytes
---@field buffers integer bytes
---@field constants integer bytes
---@field saved integer bytes that a micro-batch keeps for its backward in one stage
---@field peak integer most bytes that micro-batches hold at a time
---@field host integer most bytes of activations that wait in memory of the host
---@field total integer bytes of all these at most, without states of the optimizer

--- The program of one rank, lowered alone; a plan error where the plan does not fit the graph.
---@param graph nnscaler.Graph
---@param options? nnscaler.LowerOptions
---@return nnscaler.Program
function lower.lower(graph, options) end

--- The programs of all ranks; a plan error where the plan does not fit the graph.
---@param graph nnscaler.Graph
---@param options? nnscaler.LowerOptions
---@return nnscaler.Skeleton
function lower.skeleton(graph, options) end

--- What a step of a plan costs on hardware, as the programs of all ranks tell it; of rows of equal
--- layers few are lowered.
---@param graph nnscaler.Graph
---@param options nnscaler.LowerOptions with a plan
---@param settings nnscaler.StepSettings
---@return nnscaler.StepCost
function lower.simulate(graph, options, settings) end

--- How often this process has lowered for a class of devices.
---@return integer
function lower.count() end

--- The program that `json` wrote; a state error where the text is malformed.
---@param text string
---@return nnscaler.Program
function lower.from_json(text) end

--- A program of a step alone: of parameters outside of any graph.
---@param parameters table[] { name, shape, dtype, reduce: ranks or nil, holders }
---@param model string its name
---@return nnscaler.Program
function lower.step(parameters, model) end

--- How each operator that has one is differentiated, sorted by name.
---@return { op: string, kind: 'rule'|'composite'|'constant' }[]
function lower.rules() end

--- Reads the head of a generated file; a state error where it has none.
---@param text string
---@param path string for messages
---@return string key of the program it was written from
---@return boolean edited whether the text below the head was changed by hand
---@return string settings in one line
function lower.read_header(text, path) end

--- The program as text.
---@return string
function Program:text() end

--- The program as JSON, which `from_json` reads.
---@return string
function Program:json() end

--- Hash of the program.
---@return string digits 16 hexadecimal digits
function Program:hash() end

--- The generated file.
---@param settings? string one line for its head
---@return string text
function Program:lua(settings) end

--- The key that stands in the head of its generated file.
---@return string
function Program:key() end

--- Parameters that the rank holds, or parts of them.
---@return nnscaler.ProgramParameter[]
function Program:parameters() end

--- Buffers that the rank holds, or parts of them.
---@return nnscaler.ProgramBuffer[]
function Program:buffers() end

--- The sets of gradients of the step: those that one all-reduce sums, in the order in which
--- backward completes them, then those that are summed nowhere.
---@return { ranks?: integer[], names: string[], late?: true }[] late: this graph has none of them
function Program:sets() end

--- What the rank sends in a micro-batch and in the sums of a step.
---@return nnscaler.SentTraffic[]
function Program:traffic() end

--- Samples that the first segment takes.
---@return nnscaler.ProgramTensor[]
function Program:inputs() end

--- Casts of parameters that all micro-batches of a step read.
---@return string[] names under which programs read them: that of the parameter and a dtype
function Program:casts() end

--- Its functions, in the order of the generated text.
---@return nnscaler.ProgramSegments
function Program:segments() end

--- Matrix products that either kernel could make, each once.
---@return table[] { key =, op =, rows =, inner =, columns =, kernel = that makes it }
function Program:products() end

---@class nnscaler.ProgramCall
---@field call string the name by which profiles know it
---@field op string 'accumulate' for an addend of a gradient
---@field flops number
---@field bytes number that it reads and writes, 0 for a view
---@field largest number elements of its largest tensor
---@field dtype string of its results
---@field communicates boolean

--- What each segment calls, in the order in which its function does; `name` of the segment.
---@return nnscaler.ProgramCall[][]
function Program:call_costs() end

--- What the rank runs in a step, in order.
---@return { kind: 'F'|'B'|'W', stage: integer, micro: integer }[]
---@return integer micro_batches of which that is
function Program:schedule() end

--- The calls of a segment, in the order in which they run.
---@param segment string its name
---@return { op: string, place: string }[] place: in the model ('gpt.lua:12'), '' where nowhere
function Program:calls(segment) end

--- How values change their layout.
---@return integer all adapters
---@return integer paired those of one call whose mirror in backward is one call
---@return table<string, integer> pairs how often each such pair is there
function Program:adapters() end

--- Groups of ranks, in the order in which all ranks make them.
---@return integer[][]
function Program:groups() end

--- Constants with their bytes.
---@return nnscaler.ProgramTensor[]
function Program:constants() end

--- Of an embedded program: results of forward whose gradients backward takes ('1', '2.h.0').
---@return string[]
function Program:seeds() end

--- Of an embedded program: inputs whose gradients backward gives.
---@return string[]
function Program:input_gradients() end

--- Calls whose derivative is taken by executing them again under autograd.
---@return { op: string, module: string, place: string }[]
function Program:fallbacks() end

--- Memory of the rank; a plan error for a part that it does not have.
---@param order? nnscaler.PlanAction[] what it runs; by default all parts of one micro-batch
---@return nnscaler.ProgramMemory
function Program:memory(order) end

--- Memory of the device in the phases of a step, beside weights, buffers, constants and the state
--- of the optimizer, to the byte: at the end of a forward, until all gradients are there (the most
--- of either), and afterwards.
---@param order nnscaler.PlanAction[] what it runs in the step
---@param apart? boolean whether gradients rest in memory of the host
---@return table<'forward'|'backward'|'step', { activations: integer, gradients: integer }>
function Program:phases(order, apart) end

--- Choices worth a line in the log, each once.
---@return string[]
function Program:notes() end

--- Those of `notes` that the plan did not ask for.
---@return string[]
function Program:warnings() end

--- The program of a rank.
---@param rank? integer 0 by default
---@return nnscaler.Program
function Skeleton:project(rank) end

--- Memory of a rank, as `Program:memory` of one micro-batch tells it.
---@param rank? integer 0 by default
---@return nnscaler.ProgramMemory
function Skeleton:memory(rank) end

--- What a rank sends, as `Program:traffic` tells it.
---@param rank? integer 0 by default
---@return nnscaler.SentTraffic[]
function Skeleton:traffic(rank) end

--- The graph whose values `seen` numbers.
---@return nnscaler.Graph
function Skeleton:graph() end

---@class nnscaler.Sight what a result of a call is of the graph
---@field value integer
---@field gradient boolean whether it is of the gradient of the value
---@field reader integer node that has the value in this form, or gives this addend of the gradient;
---  -1: the value as it is made, or all of its gradient
---@field node integer that the call comes from
---@field segment string
---@field call integer in the order of `Program:calls`, from 1
---@field out integer which result, from 1
---@field layout string how all ranks have it
---@field start integer[] of this rank's part
---@field shape integer[]
---@field addend integer from 0
---@field addends integer of how many the value is the sum

--- What the calls of a rank make of the graph; empty unless the skeleton was asked for sights.
---@param rank? integer 0 by default
---@return nnscaler.Sight[]
function Skeleton:seen(rank) end

---@class nnscaler.Spent what the instructions of one call take in one stage, of a micro-batch
---@field stage integer
---@field node integer of the graph; -1: of no call
---@field op string of a collective, or of what belongs to no call; else ''
---@field communication boolean
---@field forward number seconds
---@field backward number seconds
---@field interpolated number seconds that others like them were measured for
---@field modelled number seconds of those that were not measured
---@field instrs integer

---@class nnscaler.RankAccount
---@field rank integer
---@field ranks integer that share its lowering
---@field memory nnscaler.ProgramMemory
---@field state integer bytes of the optimizer
---@field spent nnscaler.Spent[]
---@field row integer of the time line
---@field course integer[][] of each part there: bytes above what rests while it runs, and behind it

---@class nnscaler.StepAccount: nnscaler.StepCost
---@field line nnscaler.TimedAction[][] of each pipeline rank, in seconds
---@field ranks nnscaler.RankAccount[] one of each class

--- What `simulate` says, with where time and memory go.
---@param plan nnscaler.Plan that the skeleton is of
---@param settings nnscaler.StepSettings
---@return nnscaler.StepAccount
function Skeleton:account(plan, settings) end

--- Ranks that share a lowering.
---@return integer[][]
function Skeleton:classes() end

--- Checks the program of each class by itself, and up to 64 ranks against each other; an error says
--- what is wrong.
---@return boolean compared whether all ranks were compared with each other too
function Skeleton:check() end

return lower
