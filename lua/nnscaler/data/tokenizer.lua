--- Text to token ids and back, as the tokenizer of a model does it:
--- `tokenizer('llama/tokenizer.json')` reads a byte-level BPE, `tokenizer.model` a SentencePiece
--- model; a folder may hold either.
local C = require 'nnscaler._C.tokenizer'
local paths = require 'nnscaler._C.checkpoint'

---@class nnscaler.data.Tokenizer
---@field vocab integer ids are below
---@field path string of the file
local Tokenizer = {}
Tokenizer.__index = Tokenizer

--- Returns the ids of a text. `special` (default true) puts around it what the file says: Llama's
--- token of the beginning.
---@param text string UTF-8
---@param special? boolean
---@return integer[]
function Tokenizer:encode(text, special) return self.handle:encode(text, special) end

--- Returns the bytes of ids, without special tokens; they may end inside a character.
---@param ids integer[]
---@return string
function Tokenizer:decode(ids) return self.handle:decode(ids) end

--- Returns the id of a token by its name in the file ('<|endoftext|>'), or nil.
---@param token string
---@return integer|nil
function Tokenizer:id(token) return self.handle:id(token) end

--- Returns plain data from which the tokenizer is found again: for checkpoints.
---@return { type: string, path: string }
function Tokenizer:vocabulary() return { type = 'tokenizer', path = self.path } end

--- Opens a tokenizer.
---@param path string file or folder
---@return nnscaler.data.Tokenizer
return function(path)
  local handle, file = C.read(path)
  return setmetatable({ handle = handle, vocab = handle:size(), path = paths.real_path(file) },
    Tokenizer)
end
