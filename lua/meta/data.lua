---@meta nnscaler._C.data
--- Token sequences, characters, prefetched windows, random numbers of data sets (src/data).
--- Positions count from 0.

---@class nnscaler._C.data
local data = {}

--- A sequence of token ids.
---@class nnscaler.Tokens
local Tokens = {}

--- The characters of a text, numbered in the order of their code points.
---@class nnscaler.Characters
local Characters = {}

--- Micro-batches of windows over a sequence, a pure function of seed and number.
---@class nnscaler.Windows
local Windows = {}

---@class nnscaler.WindowsOptions
---@field block integer tokens of a window
---@field batch integer windows of a micro-batch
---@field begin? integer first token that windows may hold, 0 by default
---@field stop? integer the one behind the last, all by default
---@field order? 'random'|'epoch'|'pass' endless draws (the default), each once permuted, in order
---@field drop_last? boolean leaves out the last batch of an epoch if it is not full, by default
---@field seed? integer 0 by default
---@field vocab? integer ids must be below; 0, the default, leaves them unchecked
---@field replicas? integer how far numbers of micro-batches are apart, 1 by default
---@field prefetch? integer micro-batches made ahead by a thread, 2 by default

--- Reads a text; a data error for an empty one, bad UTF-8, and more than 65,536 characters.
---@param path string
---@return nnscaler.Tokens
---@return nnscaler.Characters
function data.text(path) end

--- Maps a token file of nanoGPT or llm.c; a data error where size and header disagree.
---@param path string
---@return nnscaler.Tokens
function data.token_file(path) end

--- Maps several such files as one sequence.
---@param name string of the whole, for messages
---@param paths string[]
---@return nnscaler.Tokens
function data.token_files(name, paths) end

--- Characters in a given order, as `list` told it; a state error where one repeats.
---@param list string[]
---@return nnscaler.Characters
function data.characters(list) end

--- Windows over a sequence; a usage error for sizes below 1, a data error for too short a sequence.
---@param tokens nnscaler.Tokens
---@param options nnscaler.WindowsOptions
---@return nnscaler.Windows
function data.windows(tokens, options) end

--- Where a position goes in the permutation of an epoch; a data error outside of it.
---@param key string of the data set
---@param seed integer
---@param epoch integer
---@param index integer
---@param size integer of the permutation
---@return integer index
function data.permuted(key, seed, epoch, index, size) end

--- Numbers in [0, 1) of one sample.
---@param key string of the data set
---@param seed integer
---@param index integer of the sample
---@param count integer
---@return nnscaler.Tensor float32 [count]
function data.uniform(key, seed, index, count) end

--- An integer in [0, bound) of one sample.
---@param key string of the data set
---@param seed integer
---@param index integer of the sample
---@param bound integer
---@return integer
function data.integer(key, seed, index, bound) end

--- Number of tokens.
---@return integer
function Tokens:size() end

--- The largest id; reads all of them.
---@return integer
function Tokens:largest() end

--- Ids of a range; a data error outside of the sequence.
---@param begin integer
---@param count integer
---@return nnscaler.Tensor ids int64 [count]
function Tokens:read(begin, count) end

--- Number of characters.
---@return integer
function Characters:size() end

--- The characters in order of their ids.
---@return string[]
function Characters:list() end

--- Ids of a text; a data error names the first character that is not known.
---@param text string
---@param name? string of the text, for messages
---@return integer[]
function Characters:encode(text, name) end

--- Text of ids; a data error for one that is not known.
---@param ids integer[]
---@return string
function Characters:decode(ids) end

--- A micro-batch.
---@param n integer its number
---@return nnscaler.Tensor x int64 [rows, block]
---@return nnscaler.Tensor y the same moved on by one token
function Windows:get(n) end

--- Where the windows of a micro-batch begin.
---@param n integer its number
---@return integer[]
function Windows:starts(n) end

--- Micro-batches of an epoch.
---@return integer|nil count nil where it is endless
function Windows:per_epoch() end

return data
