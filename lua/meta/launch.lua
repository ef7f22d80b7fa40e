---@meta nnscaler._C.launch
--- Who started this process among how many, the watch over the ranks, and the supervisor of
--- `nnscaler run -n` (src/bind/launch.cpp).

---@class nnscaler._C.launch
local launch = {}

---@class nnscaler.Launch
---@field launcher 'none'|'mpirun'|'torchrun'|'environment'|'slurm'
---@field rank integer from 0
---@field size integer of the run
---@field local_rank integer among the ranks of this host
---@field local_size integer ranks of this host

--- Reads from the environment who this process is; log lines carry its rank from then on. A usage
--- error names variables that contradict each other.
---@return nnscaler.Launch
function launch.read() end

--- Tells the supervisor that started this process, if one did, that it lives.
function launch.report_to_supervisor() end

--- Whether a supervisor or a hub hears when this rank fails.
---@return boolean
function launch.is_watched() end

--- Starts the hub of the watch in a thread of this process.
---@param beat_s number seconds between beats of a rank
---@return string endpoint where the other ranks find it
function launch.host_watch(beat_s) end

--- Joins the watch; done once a process.
---@param endpoint string what `host_watch` gave on rank 0
function launch.watch(endpoint) end

--- Bounds the time of one collective under the watch (comm.timeout_s); one that takes longer is a
--- failure.
---@param seconds number
function launch.limit_calls(seconds) end

--- Says which step this rank is in, for messages about it.
---@param step integer from 1
function launch.at_step(step) end

--- Says which phase of a step this rank is in, for messages about it.
---@param phase 'setup'|'step'|'forward'|'backward'|'update'|'evaluation'|'save'
function launch.at_phase(phase) end

--- The common end, after a barrier: from here on ranks may leave.
function launch.finish() end

---@class nnscaler.Supervision
---@field ranks? integer 1 by default
---@field beat_s? number seconds between beats of a rank, 1 by default
---@field program string path of the binary
---@field arguments string[] of every rank
---@field meets_by_tcp? boolean whether ranks get MASTER_ADDR and MASTER_PORT

--- Starts ranks under mpirun, stays beside them and hands signals on.
---@param what nnscaler.Supervision
---@return integer code exit code: 0, that of the first rank that failed, or 128 + signal
function launch.supervise(what) end

return launch
