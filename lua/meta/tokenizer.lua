---@meta nnscaler._C.tokenizer
--- Text to token ids and back (src/tokenizer).

---@class nnscaler._C.tokenizer
local tokenizer = {}

--- A byte-level BPE or a SentencePiece model.
---@class nnscaler.Tokenizer
local Tokenizer = {}

--- Opens a tokenizer.json, a SentencePiece .model, or a folder with one of them; a usage error
--- where there is none, a data error for one that is broken or asks for what is not here.
---@param path string
---@return nnscaler.Tokenizer
---@return string file where the path is a folder: the one in it
function tokenizer.read(path) end

--- Ids are below.
---@return integer
function Tokenizer:size() end

--- Ids of a text; a data error where it is not UTF-8.
---@param text string
---@param special? boolean with the tokens that the file puts around a text, by default
---@return integer[]
function Tokenizer:encode(text, special) end

--- Bytes of ids, without special tokens; a data error for an id that is not below the size.
---@param ids integer[]
---@return string
function Tokenizer:decode(ids) end

--- Id of a token by its name in the file.
---@param token string
---@return integer|nil
function Tokenizer:id(token) end
