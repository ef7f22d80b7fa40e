--- The folder that `nnscaler data prepare` writes: files of tokens, the tokenizer, and tokens.json
--- that lists them.
local C = require 'nnscaler._C.data'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'

local M = { index = 'tokens.json', format = 'nnscaler tokens', version = 1 }

local area = 'data.tokens'

--- Whether a path is such a folder, or one that is not finished.
---@param path any
---@return boolean
function M.is_folder(path) return type(path) == 'string' and base.file_exists(path) == 'folder' end

---@class nnscaler.data.Prepared
---@field vocab integer ids are below
---@field block? integer tokens of a window
---@field tokenizer string path
---@field handle userdata all tokens as one sequence

--- Opens a folder.
---@param path string
---@return nnscaler.data.Prepared
function M.open(path)
  local file = path .. '/' .. M.index
  if base.file_exists(file) ~= 'file' then
    fail('data', area, ("the folder '%s' has no %s"):format(path, M.index),
      '`nnscaler data prepare` writes it when all files are there')
  end
  local ok, index = pcall(function() return base.json_decode(base.file_read(file)) end)
  if not ok or type(index) ~= 'table' or index.format ~= M.format
    or type(index.files) ~= 'table' or type(index.vocab) ~= 'number'
    or type(index.tokenizer) ~= 'string' then
    fail('data', area, ("'%s' is not the index of a folder of tokens"):format(file))
  end
  if index.version ~= M.version then
    fail('data', area, ("'%s' has version %s; expected %d"):format(file, tostring(index.version),
      M.version))
  end
  local files = {}
  for i, item in ipairs(index.files) do
    if type(item.file) ~= 'string' or item.file:find '[/\\]' then
      fail('data', area, ("'%s' names the file '%s'; expected one beside it"):format(file,
        tostring(item.file)))
    end
    files[i] = path .. '/' .. item.file
  end
  local handle = C.token_files(path, files)
  if handle:size() ~= index.tokens then
    fail('data', area, ("'%s' says %s tokens; its files hold %d"):format(file,
      tostring(index.tokens), handle:size()))
  end
  return { vocab = index.vocab, block = index.block, handle = handle,
    tokenizer = path .. '/' .. index.tokenizer }
end

return M
