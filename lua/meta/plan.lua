---@meta nnscaler._C.plan
--- The builder that policies call, plans, pipeline schedules (src/bind/plan.cpp). Nodes, inputs,
--- dims, devices and stages count from 0.

---@class nnscaler._C.plan
local plan = {}

--- An immutable plan for one scale unit, repeated for all of them.
---@class nnscaler.Plan
local Plan = {}

--- Makes a plan for one graph, call by call; each call is checked at once.
---@class nnscaler.PlanBuilder
local PlanBuilder = {}

---@class nnscaler.PlanInfo
---@field plan_ngpus integer devices of a scale unit
---@field runtime_ngpus integer ranks of the run
---@field stages integer[][] devices of each stage
---@field schedule string
---@field chunks integer stages of a pipeline rank
---@field micro_batches integer of a unit, a step
---@field lanes integer 2 where a schedule goes through the ranks in both directions, else 1
---@field zero integer which states of weights rest in shards, the greatest level of any: 0 none, 1
---  those of the optimizer, 2 gradients too, 3 weights too

---@class nnscaler.PlanAction
---@field kind 'F'|'B'|'W' forward, backward, gradients of weights
---@field stage integer
---@field micro integer micro-batch from 0

---@class nnscaler.TimedAction: nnscaler.PlanAction
---@field start number in the unit of the times given
---@field stop number

---@class nnscaler.NodeHooks
---@field before? string a function of the user by the name that `require` finds it by
---@field after? string
---@field meta? string what both are handed

--- A builder for a graph; a usage error unless runtime_ngpus is a multiple of plan_ngpus.
---@param graph nnscaler.Graph
---@param plan_ngpus integer
---@param runtime_ngpus integer
---@return nnscaler.PlanBuilder
function plan.builder(graph, plan_ngpus, runtime_ngpus) end

--- The plan that `json` wrote; a state error where it is malformed, a plan error where it is for
--- another number of devices than the one given.
---@param text string
---@param plan_ngpus? integer
---@param runtime_ngpus? integer given with plan_ngpus
---@return nnscaler.Plan
function plan.from_json(text, plan_ngpus, runtime_ngpus) end

--- Where the stages of a schedule lie; a plan error where it cannot do with the numbers.
---@param name string of a schedule
---@param ranks integer pipeline ranks
---@param chunks? integer stages of a pipeline rank, 1 by default
---@return integer[] ranks of each stage, in lane 0
function plan.placement(name, ranks, chunks) end

--- When each part of a schedule runs under free links; a plan error where it cannot do with the
--- numbers.
---@param name string of a schedule
---@param ranks integer pipeline ranks
---@param micro_batches integer
---@param chunks? integer stages of a pipeline rank, 1 by default
---@param forward? number time of a part, 1 by default
---@param backward? number 1 by default
---@param weight? number 1 by default
---@return nnscaler.TimedAction[][] lines of each pipeline rank
function plan.time_line(name, ranks, micro_batches, chunks, forward, backward, weight) end

--- The plan as text, one line an operator.
---@return string
function Plan:text() end

--- The plan as JSON, which `from_json` reads.
---@return string
function Plan:json() end

--- Hash of all that the plan holds.
---@return string digits 16 hexadecimal digits
function Plan:hash() end

--- What holds for the whole plan.
---@return nnscaler.PlanInfo
function Plan:info() end

--- Stages that a device runs, ascending; `first` tells the first device of the stage.
---@param device integer
---@return { stage: integer, lane: integer, first: boolean }[]
function Plan:parts(device) end

--- What a device runs in a step, in order.
---@param device integer
---@param micro_batches integer of its scale unit
---@param training? boolean true by default; else forwards alone
---@return nnscaler.PlanAction[]
function Plan:order(device, micro_batches, training) end

--- When each part of the plan's schedule runs under free links.
---@param micro_batches integer
---@param forward? number time of a part, 1 by default
---@param backward? number 1 by default
---@param weight? number 1 by default
---@return nnscaler.TimedAction[][] lines of each pipeline rank
function Plan:time_line(micro_batches, forward, backward, weight) end

--- Throws a plan error that names the first difference unless the plan was made for the graph.
---@param graph nnscaler.Graph
function Plan:match(graph) end

--- Whether the plan has an entry for each operator of a graph, or for another call of it in the
--- same module.
---@param graph nnscaler.Graph
---@return boolean
function Plan:knows(graph) end

--- The plan with the operators of another one beside its own.
---@param other nnscaler.Plan for another graph of the same model
---@return nnscaler.Plan|nil plan nil where their stages lie on other devices
function Plan:with_operators(other) end

--- Cuts a node further, inside its earlier cuts; a plan error names the legal choices.
---@param node integer
---@param input integer tensor operand
---@param dim integer negative from the end
---@param parts integer
---@param uneven? boolean whether parts may differ by one element
---@param sizes? integer[] elements of each part
function PlanBuilder:partition(node, input, dim, parts, uneven, sizes) end

--- Why `partition` would refuse.
---@param node integer
---@param input integer tensor operand
---@param dim integer negative from the end
---@param parts integer
---@param uneven? boolean whether parts may differ by one element
---@param in_turns? boolean whether the parts are to run one after another on a device
---@param sizes? integer[] elements of each part
---@return string|nil reason nil where it would not
function PlanBuilder:refusal(node, input, dim, parts, uneven, in_turns, sizes) end

--- Every { input, dim } of a node that can be cut at all.
---@param node integer
---@return integer[][]
function PlanBuilder:choices(node) end

--- What `partition` would do to the node's tensors: 'replicate', 'value', or the dim that is cut.
---@param node integer
---@param input integer tensor operand
---@param dim integer negative from the end
---@param parts integer
---@return { inputs: (integer|string)[], outputs: (integer|string)[] }|nil split nil where refused
function PlanBuilder:split(node, input, dim, parts) end

--- Runs a node several times on whole tensors, inside its earlier cuts.
---@param node integer
---@param parts integer
function PlanBuilder:replicate(node, parts) end

--- Sets the devices of a node's parts.
---@param node integer
---@param devices integer[] row-major over the cuts of the node
function PlanBuilder:assign(node, devices) end

--- Cuts the graph into stages.
---@param first integer[] first node of each stage but the first, ascending
---@param devices integer[][] of each stage
function PlanBuilder:stage(first, devices) end

--- Lets backward execute nodes again, as one group, instead of keeping what they make.
---@param nodes integer[]
function PlanBuilder:recompute(nodes) end

--- Keeps what backward reads of the results of nodes in memory of the host.
---@param nodes integer[]
function PlanBuilder:offload(nodes) end

--- Runs functions of the user around a node.
---@param node integer
---@param hooks nnscaler.NodeHooks
function PlanBuilder:hooks(node, hooks) end

--- Sets the schedule of several stages.
---@param name string a schedule, or 'custom'
---@param micro_batches integer of a unit, a step
---@param chunks? integer stages of a pipeline rank, 1 by default
---@param orders? string[] of 'custom', per pipeline rank: 'F0 F1 B0 B1'
function PlanBuilder:schedule(name, micro_batches, chunks, orders) end

--- Says which states rest in shards between steps, of all weights or of one.
---@param level integer 0 to 3, as in PlanInfo
---@param weight? string its name
function PlanBuilder:zero(level, weight) end

--- Says how shards lie.
---@param groups integer of scale units: shards inside of each, sums across all
---@param scatter boolean whether at level 1 sums keep shards of gradients only
---@param undivided string[] names of weights whose slots one rank keeps
function PlanBuilder:shards(groups, scatter, undivided) end

--- Makes an error of a shape that the plan does not fit, instead of a replicated operator.
function PlanBuilder:strict() end

--- The stage of a node.
---@param node integer
---@return integer stage
function PlanBuilder:stage_of(node) end

--- The devices of a stage.
---@param stage integer
---@return integer[] devices
function PlanBuilder:stage_devices(stage) end

--- Whether a node was given anything yet.
---@param node integer
---@return boolean
function PlanBuilder:planned(node) end

--- Checks the whole; a plan error names the first node that lacks a device.
---@param policy string name of the policy that made it
---@return nnscaler.Plan
function PlanBuilder:finish(policy) end

return plan
