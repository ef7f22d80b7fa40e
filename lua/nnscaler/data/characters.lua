--- A text file as a sequence of its characters: `characters(path, { block = 64 })`. The vocabulary
--- is
--- the characters that occur in the file, in the order of their code points.
local C = require 'nnscaler._C.data'
local windows = require 'nnscaler.data.windows'

---@class nnscaler.data.Characters: nnscaler.data.Sequence
local Characters = setmetatable({}, { __index = windows.Sequence })
Characters.__index = Characters

--- Returns the ids of a text; an unknown character is an error that names it.
---@param text string
---@return integer[]
function Characters:encode(text) return self.table:encode(text) end

--- Returns the text of ids.
---@param ids integer[]
---@return string
function Characters:decode(ids) return self.table:decode(ids) end

--- Returns plain data from which `decoder` makes encode and decode again: for checkpoints.
---@return { type: string, characters: string[] }
function Characters:vocabulary()
  return { type = 'characters', characters = self.table:list() }
end

local M = {}

--- Returns an object with `vocab`, `encode` and `decode` for what `vocabulary` returned.
---@param vocabulary { type: string, characters: string[] }
---@return { vocab: integer, encode: function, decode: function }
function M.decoder(vocabulary)
  local codec = { table = C.characters(vocabulary.characters), vocab = #vocabulary.characters }
  return setmetatable(codec, { __index = { encode = Characters.encode, decode = Characters.decode,
    vocabulary = Characters.vocabulary } })
end

---@class nnscaler.data.CharactersOptions
---@field block integer tokens of a window
---@field validation? number share of the text kept for validation, from its end; default 0.1
---@field sampling? 'random'|'epoch' any window each time (endless), or each of a grid once an
---  epoch; default random
---@param path string|table file; or, from a configuration, one table with `path` and the options
---@param options? nnscaler.data.CharactersOptions
---@return nnscaler.data.Characters
local function make(path, options)
  if type(path) == 'table' then path, options = windows.split_path('data.characters', path) end
  local o = windows.options('data.characters', options)
  local handle, characters = C.text(path)
  local self = setmetatable({ table = characters, vocab = characters:size() }, Characters)
  windows.cut(self, 'data.characters', path, handle, o)
  return self
end

return setmetatable(M, { __call = function(_, ...) return make(...) end })
