---@meta nnscaler._C.solve
--- Hardware, and the plan that costs least on it (src/bind/solve.cpp).

---@class nnscaler._C.solve
local solve = {}

---@class nnscaler.Hardware
---@field name string
---@field devices_per_host integer
---@field memory integer bytes of a device
---@field origin string of its figures: 'measured', 'interpolated', 'modelled'

---@class nnscaler.StepSettings what a step needs beside the programs
---@field hardware? string a known machine, the path of a description or of a profile, or
---  'measured': this machine as `nnscaler profile` found it; 'cpu' by default
---@field micro_batches? integer of a unit, 1 by default
---@field bucket_bytes? integer of gradients that one all-reduce sums, 25 MiB by default
---@field state? number bytes that the optimizer keeps for each byte of a weight, 2 by default
---@field optimizer? string its name, by which a profile knows what its step takes

---@class nnscaler.StepCost
---@field seconds number of a step
---@field forward number seconds of a micro-batch
---@field backward number seconds of a micro-batch
---@field communication number seconds of a micro-batch, of those
---@field measured number seconds of a micro-batch, of those, that were measured
---@field interpolated number of those, from calls and sizes nearby
---@field modelled number of those, from figures of the hardware
---@field sums number seconds a step: sums of gradients
---@field update number seconds a step
---@field resting integer bytes of weights, gradients, optimizer state, buffers, constants
---@field saved integer bytes that a micro-batch keeps between forward and backward
---@field total integer most bytes at any time

---@class nnscaler.AutodistOptions: nnscaler.StepSettings
---@field plan_ngpus integer
---@field runtime_ngpus integer
---@field device? string that programs are made for, 'cpu' by default
---@field memory? number most bytes of a device; nil: no limit
---@field pipeline? integer pipeline ranks, 1 by default; 0: any divisor of plan_ngpus
---@field schedule? string of a pipeline; nil: the best
---@field most_width? integer devices that share a stage, where `pipeline` is 0
---@field most_bubble? number part of a step in which pipeline ranks may wait, 1 by default
---@field zero? integer level of all weights; nil: the best
---@field constraints? string path of a YAML list: which cuts operators may have
---@field report? boolean whether the report is wanted

---@class nnscaler.Autodist
---@field cost nnscaler.StepCost by the simulator
---@field cuts integer[][] node, input, dim of each call that is cut
---@field zero integer what rests in shards, as compute_config.use_zero
---@field first integer[] first nodes of the stages behind the first
---@field devices integer[][] of each stage
---@field schedule string
---@field chunks integer stages of a pipeline rank
---@field again integer[][] nodes that run again together in backward
---@field arranged string stages, shards and recomputation in words
---@field simulated integer whole plans that were lowered and simulated
---@field report? string as JSON (src/solve/report.h), where it was asked for
---@field searched number seconds of a step, by the costs of the search
---@field exact boolean
---@field gap number the most that a plan could be faster, where it is not the fastest; 1: unknown
---@field bound boolean whether the limit made it take another plan than the fastest
---@field fastest number seconds of the fastest plan without limit; 0: unknown
---@field labels integer partial plans that were looked at
---@field frontiers integer most of them at one place
---@field calls integer
---@field kinds integer distinct calls
---@field space_seconds number that it took to price calls
---@field search_seconds number
---@field check_seconds number

--- The hardware of a name or a description; a usage error that lists the known names for any other.
---@param text string
---@return nnscaler.Hardware
function solve.hardware(text) end

--- Where `nnscaler profile` keeps what it measured; '' where there is no home.
---@return string
function solve.profile_path() end

--- The plan of a graph that takes least time within a limit of memory; a plan error where none
--- keeps it.
---@param graph nnscaler.Graph
---@param options nnscaler.AutodistOptions
---@return nnscaler.Autodist
function solve.autodist(graph, options) end

--- Seconds of a step that no plan within the limit goes below, by linear programs; nil where that
--- is no more than `fastest`, or where there is no HiGHS.
---@param graph nnscaler.Graph
---@param options nnscaler.AutodistOptions
---@param seconds number of a plan that is known: more is not looked for
---@param fastest number that no plan goes below without a limit, 0 where that is not known
---@return number|nil
function solve.bound(graph, options, seconds, fastest) end

--- Why HiGHS, which `bound` needs, cannot be used; '' where it can.
---@return string
function solve.highs_problem() end

return solve
