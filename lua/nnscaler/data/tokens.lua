--- A file of token ids, memory-mapped: `tokens(path, { block = 1024, vocab = 50257 })`. Reads
--- nanoGPT's
--- uint16 .bin files and llm.c's files with a header.
local C = require 'nnscaler._C.data'
local fail = require 'nnscaler.fail'
local windows = require 'nnscaler.data.windows'

---@class nnscaler.data.Tokens: nnscaler.data.Sequence
local Tokens = setmetatable({}, { __index = windows.Sequence })
Tokens.__index = Tokens

---@class nnscaler.data.TokensOptions
---@field block integer tokens of a window
---@field vocab? integer ids must be below; default: the largest id plus one (reads the whole file)
---@field validation? number share of the file kept for validation, from its end; default 0.1
---@field validation_file? string a second file, validated on as a whole
---@field sampling? 'random'|'epoch' default random
---@param path string|table file; or, from a configuration, one table with `path` and the options
---@param options? nnscaler.data.TokensOptions
---@return nnscaler.data.Tokens
return function(path, options)
  if type(path) == 'table' then path, options = windows.split_path('data.tokens', path) end
  local o = windows.options('data.tokens', options)
  local handle = C.token_file(path)
  local second = o.validation_file and C.token_file(o.validation_file)
  if o.vocab ~= nil and (type(o.vocab) ~= 'number' or o.vocab < 1 or o.vocab % 1 ~= 0) then
    fail('usage', 'data.tokens', ('vocab = %s; expected an integer of at least 1'):format(
      tostring(o.vocab)))
  end
  local vocab = o.vocab
    or math.max(handle:largest(), second and second:largest() or 0) + 1
  -- Given ids are checked as they are read; found ones are right already.
  local self = setmetatable({ vocab = vocab, checked_vocab = o.vocab }, Tokens)
  windows.cut(self, 'data.tokens', path, handle, o, second)
  return self
end
