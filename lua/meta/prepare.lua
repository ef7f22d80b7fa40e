---@meta nnscaler._C.prepare
--- Texts to files of tokens, on threads (src/data/prepare.h).

---@class nnscaler._C.prepare
local prepare = {}

--- The work of one folder, cut into pieces.
---@class nnscaler.Preparation
local Preparation = {}

---@class nnscaler.PreparationOptions
---@field tokenizer string path
---@field inputs string[] .jsonl files hold a document a line, .parquet
---  files a document a row, others are a document each
---@field out string folder that is there
---@field field? string of a JSON line, or column, that holds the text; 'text' by default
---@field piece_bytes? integer of a .jsonl or .parquet file; 64 MiB by default
---@field bos? integer id before each document; -1, the default: none
---@field eos? integer id after each document
---@field threads? integer 1 by default

--- Cuts the inputs into pieces; a usage error for one that cannot be read.
---@param options nnscaler.PreparationOptions
---@return nnscaler.Preparation
function prepare.new(options) end

--- What differs when a file was changed: its size and time.
---@param path string
---@return string
function prepare.state_of_file(path) end

--- Starts the threads.
function Preparation:start() end

--- Waits for the end; raises what went wrong.
---@param seconds number at most so long
---@return boolean done
function Preparation:wait(seconds) end

--- Bytes of the inputs.
---@return integer done
---@return integer all
function Preparation:progress() end

--- The files, in order; complete once all is done.
---@return { file: string, documents: integer, tokens: integer }[]
function Preparation:pieces() end
