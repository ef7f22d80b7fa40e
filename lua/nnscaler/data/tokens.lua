--- Token ids, memory-mapped: `tokens(path, { block = 1024, vocab = 50257 })`. Reads nanoGPT's
--- uint16 .bin files, llm.c's files with a header, and folders that `nnscaler data prepare` wrote.
local C = require 'nnscaler._C.data'
local fail = require 'nnscaler.fail'
local prepared = require 'nnscaler.data.prepared'
local tokenizer = require 'nnscaler.data.tokenizer'
local windows = require 'nnscaler.data.windows'

---@class nnscaler.data.Tokens: nnscaler.data.Sequence
local Tokens = setmetatable({}, { __index = windows.Sequence })
Tokens.__index = Tokens

--- Returns plain data from which the tokenizer is found again, for checkpoints; nil for files whose
--- tokenizer is not known.
---@return { type: string, path: string }|nil
function Tokens:vocabulary()
  return self.tokenizer and tokenizer(self.tokenizer):vocabulary()
end

---@class nnscaler.data.TokensOptions
---@field block? integer tokens of a window; default: what the folder was prepared for
---@field vocab? integer ids must be below; default: that of the folder's tokenizer, of a file the
---  largest id plus one (reads the whole file)
---@field validation? number share of the file kept for validation, from its end; default 0.1
---@field validation_file? string a second file or folder, validated on as a whole
---@field sampling? 'random'|'epoch' default random
---@param path string|table file or folder; or, from a configuration, one table with `path` and the
---  options
---@param options? nnscaler.data.TokensOptions
---@return nnscaler.data.Tokens
return function(path, options)
  if type(path) == 'table' then path, options = windows.split_path('data.tokens', path) end
  local folder = prepared.is_folder(path) and prepared.open(path) or {}
  local o = windows.options('data.tokens', options, folder.block)
  local handle = folder.handle or C.token_file(path)
  local second = o.validation_file
  if second then
    second = prepared.is_folder(second) and prepared.open(second).handle or C.token_file(second)
  end
  if o.vocab ~= nil and (type(o.vocab) ~= 'number' or o.vocab < 1 or o.vocab % 1 ~= 0) then
    fail('usage', 'data.tokens', ('vocab = %s; expected an integer of at least 1'):format(
      tostring(o.vocab)))
  end
  local given = o.vocab or folder.vocab
  local vocab = given or math.max(handle:largest(), second and second:largest() or 0) + 1
  -- Given ids are checked as they are read; found ones are right already.
  local self = setmetatable({ vocab = vocab, checked_vocab = given, tokenizer = folder.tokenizer },
    Tokens)
  windows.cut(self, 'data.tokens', path, handle, o, second)
  return self
end
