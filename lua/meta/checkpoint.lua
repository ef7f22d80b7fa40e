---@meta nnscaler._C.checkpoint
--- safetensors files as tensors, and writing checkpoints (src/checkpoint). All failures are
--- state errors that name the file.

---@class nnscaler._C.checkpoint
---@field version integer of the format of checkpoints
local checkpoint = {}

--- An open safetensors file.
---@class nnscaler.SafetensorsFile
local SafetensorsFile = {}

--- Copies of tensors in the memory of the host, which are written while the tensors change.
---@class nnscaler.CheckpointSnapshot
local CheckpointSnapshot = {}

--- What is written on a thread of its own.
---@class nnscaler.CheckpointTask
local CheckpointTask = {}

--- The folder of a checkpoint that ranks are writing; it goes away unless it is finished.
---@class nnscaler.CheckpointDraft
local CheckpointDraft = {}

--- Keeps other runs out of a save folder until it is released.
---@class nnscaler.CheckpointClaim
local CheckpointClaim = {}

---@class nnscaler.CheckpointPiece
---@field file string of the checkpoint
---@field parameter string name of the weight
---@field state? string of the optimizer; '' for the weight itself
---@field kind? 'parameter'|'buffer' 'parameter' by default
---@field key? string its name in the file: that of the weight, or weight/state, by default
---@field data nnscaler.Tensor
---@field shape? integer[] of the whole, that of `data` by default
---@field slice? integer[][] { start, stop } per dimension, the whole by default

---@class nnscaler.CheckpointRequest
---@field save_dir string
---@field epoch integer
---@field step integer
---@field pieces nnscaler.CheckpointPiece[]
---@field state? string JSON of the trainer's state, '{}' by default
---@field aliases? string[] alias, name, alias, name, …
---@field pointers? string[] links that move to this checkpoint, as 'last'
---@field copy_pointers? boolean whether they are copies, not links
---@field keep? integer newest checkpoints to keep; 0: all

--- Opens a safetensors file.
---@param path string
---@return nnscaler.SafetensorsFile
function checkpoint.read_safetensors(path) end

--- Writes a safetensors file at once, under its name when it is whole.
---@param path string
---@param tensors { [1]: string, [2]: nnscaler.Tensor }[] name and tensor of each
---@param metadata? table<string, string>
function checkpoint.write_safetensors(path, tensors, metadata) end

--- Writes a checkpoint, moves its pointers and removes old ones.
---@param request nnscaler.CheckpointRequest
---@return string path of the checkpoint
function checkpoint.save(request) end

--- Makes room for copies, which are made by `write`.
---@return nnscaler.CheckpointSnapshot
function checkpoint.snapshot() end

--- Begins a checkpoint that several ranks write: the first of them calls it.
---@param save_dir string
---@param epoch integer
---@param step integer
---@return nnscaler.CheckpointDraft
function checkpoint.draft(save_dir, epoch, step) end

--- Writes the files of pieces into the folder of a draft and syncs them.
---@param folder string
---@param pieces nnscaler.CheckpointPiece[]
---@return string written JSON of what was written
function checkpoint.write_pieces(folder, pieces) end

--- Whole checkpoints of a save folder, oldest first.
---@param save_dir string
---@return { name: string, epoch: integer, step: integer, id: string }[] id: differs where another
---  one has taken the place of that name
function checkpoint.list(save_dir) end

--- Keeps other runs out of a save folder; an error where another run has it.
---@param save_dir string made where it is not there
---@return nnscaler.CheckpointClaim
function checkpoint.claim(save_dir) end

--- A path without links.
---@param path string
---@return string|nil path nil where nothing is there
function checkpoint.real_path(path) end

--- Lets a link in a save folder name a checkpoint.
---@param save_dir string
---@param pointer string the link, as 'last'
---@param name string of the checkpoint
function checkpoint.point(save_dir, pointer, name) end

--- XXH64 of bytes.
---@param text string
---@return string digits 16 hexadecimal digits
function checkpoint.checksum(text) end

--- Names of its tensors, in the order of the data.
---@return string[]
function SafetensorsFile:names() end

--- What the file says of a tensor.
---@param name string
---@return { dtype: string, shape: integer[], bytes: integer }|nil info nil where it has none
function SafetensorsFile:info(name) end

--- Texts that stand beside the tensors.
---@return table<string, string>
function SafetensorsFile:metadata() end

--- XXH64 of a tensor's bytes.
---@param name string
---@return string digits 16 hexadecimal digits
function SafetensorsFile:checksum(name) end

--- Reads a tensor, or a slice of it.
---@param name string
---@param slice? integer[][] { start, stop } per dimension
---@return nnscaler.Tensor
function SafetensorsFile:read(name, slice) end

--- Reads a tensor into another one.
---@param name string
---@param tensor nnscaler.Tensor of that shape and dtype
function SafetensorsFile:copy_to(name, tensor) end

--- Takes memory for copies of pieces, and touches it on a thread.
---@param pieces nnscaler.CheckpointPiece[]
function CheckpointSnapshot:reserve(pieces) end

--- Begins to copy the tensors of pieces, and to write their files into the folder of a draft.
--- Tensors other than those of buffers stay as they are until `settle` returns. What was begun
--- before must have ended: its memory is used again.
---@param folder string
---@param pieces nnscaler.CheckpointPiece[]
---@return nnscaler.CheckpointTask task whose result is that of `write_pieces`
function CheckpointSnapshot:write(folder, pieces) end

--- Takes part in copying what was begun last, until all of it is copied.
function CheckpointSnapshot:settle() end

--- Whether it has ended.
---@return boolean
function CheckpointTask:done() end

--- Waits for its end, and throws what went wrong.
---@return string result
function CheckpointTask:result() end

--- Path of the folder while it is written.
---@return string
function CheckpointDraft:folder() end

--- Ends the checkpoint: writes its state and manifest, gives it its name, moves pointers, removes
--- old ones.
---@param request table as of `save`, without pieces; `written`: what write_pieces gave each rank;
---  `order`: names of the weights in the order of the manifest
---@return nnscaler.CheckpointTask task whose result is the path of the checkpoint
function CheckpointDraft:finish(request) end

--- Removes it, unless it is finished.
function CheckpointDraft:drop() end

--- Lets other runs in again.
function CheckpointClaim:release() end

return checkpoint
