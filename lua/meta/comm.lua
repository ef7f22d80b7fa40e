---@meta nnscaler._C.comm
--- Groups of ranks and their collectives (src/comm). All members of a group call the same
--- operations in the same order; a communication error names operation, group and rank that differ
--- or are lost.

---@class nnscaler._C.comm
local comm = {}

--- One rank's door to all others.
---@class nnscaler.Communicator
local Communicator = {}

--- Ranks that communicate with each other. Peers and roots are positions in it, from 0.
---@class nnscaler.Group
local Group = {}

--- An operation under way, whose tensor must not be touched before `wait` returns.
---@class nnscaler.CommunicationHandle
local CommunicationHandle = {}

---@class nnscaler.ConnectOptions
---@field backend? string 'auto' by default
---@field device? string that tensors lie on, 'cpu' by default
---@field timeout_s? number of one collective, 600 by default
---@field join_timeout_s? number until all ranks are there, timeout_s by default
---@field message_bytes? integer of one message at most, 2^30 by default

--- The communicator of this rank.
---@return nnscaler.Communicator|nil communicator nil before it has joined one
function comm.current() end

--- Joins what a launcher started, once a process; a second call gives what the first gave. A usage
--- error where that is by another back end than the one that is asked for.
---@param options? nnscaler.ConnectOptions
---@return nnscaler.Communicator
function comm.connect(options) end

--- Back ends, and why each cannot be used here ('' where it can).
---@return { name: string, problem: string }[]
function comm.backends() end

--- Runs ranks as threads of this process, each with a Lua machine of its own; throws what the rank
--- threw that failed first.
---@param ranks integer 1 to 256
---@param module string whose value is a function of the argument that gives a text
---@param argument? string '' by default
---@return string[] texts of each rank
function comm.run_local(ranks, module, argument) end

--- This rank.
---@return integer rank from 0
function Communicator:rank() end

--- Ranks of the run.
---@return integer
function Communicator:size() end

--- Name of the back end.
---@return string
function Communicator:backend() end

--- Makes a group, together with its other members; a usage error unless this rank is one of them.
---@param ranks integer[] distinct
---@param options? { checked?: boolean } whether calls are compared before they start, by default
---@return nnscaler.Group
function Communicator:group(ranks, options) end

--- Reduces in place, addends in order of rank; 16-bit numbers in float32.
---@param tensor nnscaler.Tensor of equal shape on all ranks
---@param reduce? 'sum'|'max'|'min' 'sum' by default
---@return nnscaler.Tensor tensor the same
function Group:all_reduce(tensor, reduce) end

--- The same without waiting, where the back end can.
---@param tensor nnscaler.Tensor of equal shape on all ranks
---@param reduce? 'sum'|'max'|'min' 'sum' by default
---@return nnscaler.CommunicationHandle
function Group:all_reduce_async(tensor, reduce) end

--- Joins the parts of all ranks.
---@param tensor nnscaler.Tensor part of this rank
---@param dim integer along which they are joined
---@param whole integer length of the result along it
---@return nnscaler.Tensor
function Group:all_gather(tensor, dim, whole) end

--- Begins to join the parts, without waiting where the back end can; the next all_gather of the
--- tensor, in this group, gives the result.
---@param tensor nnscaler.Tensor
---@param dim integer
---@param whole integer
function Group:all_gather_ahead(tensor, dim, whole) end

--- Sums, and keeps this rank's part.
---@param tensor nnscaler.Tensor of equal shape on all ranks
---@param dim integer along which the sum is cut
---@return nnscaler.Tensor
function Group:reduce_scatter(tensor, dim) end

---The same of several tensors of one dtype, each along its own dimension, in one message.
---@param tensors nnscaler.Tensor[]
---@param dims integer[]
---@param empty? boolean whether the addends of this rank are zeros, whatever the tensors hold
---@return nnscaler.Tensor[] parts, which lie in one memory
function Group:reduce_scatter_all(tensors, dims, empty) end

--- Cuts along one dimension, and joins along another.
---@param tensor nnscaler.Tensor cut along `from`
---@param dim integer that is cut
---@param from integer that is joined
---@param whole integer length of the result along `from`
---@return nnscaler.Tensor
function Group:all_to_all(tensor, dim, from, whole) end

--- Gives all ranks the tensor of one, in place.
---@param tensor nnscaler.Tensor of equal shape on all ranks
---@param root integer position
---@return nnscaler.Tensor tensor the same
function Group:broadcast(tensor, root) end

--- Sends without waiting for the receiver; a usage error for a tag out of range.
---@param tensor nnscaler.Tensor
---@param peer integer position
---@param tag? integer 0 to 2^30, 0 by default
function Group:send(tensor, peer, tag) end

--- Fills a tensor with the oldest message of a tag.
---@param tensor nnscaler.Tensor of the shape that was sent
---@param peer integer position
---@param tag? integer 0 to 2^30, 0 by default
---@return nnscaler.Tensor tensor the same
function Group:recv(tensor, peer, tag) end

--- Returns when all sends were handed over.
function Group:flush() end

--- Returns when all ranks have called it.
function Group:barrier() end

--- Gives every rank the texts of all.
---@param text string of this rank
---@return string[] texts by position
function Group:exchange(text) end

--- Number of ranks.
---@return integer
function Group:size() end

--- Where this rank stands among them.
---@return integer position from 0
function Group:position() end

--- The ranks of the run that it has, ascending.
---@return integer[]
function Group:ranks() end

--- Payload that this rank has sent through the group.
---@return integer bytes
function Group:bytes_sent() end

--- Returns when the tensor is reduced.
function CommunicationHandle:wait() end

--- Whether `wait` would return at once; drives the operation on.
---@return boolean
function CommunicationHandle:done() end

return comm
