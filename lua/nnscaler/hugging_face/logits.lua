--- Holds a model against the `transformers` library: both compute the logits of the same tokens
--- from one model folder, in float32. The library runs in a Python of the user.
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local fail = require 'nnscaler.fail'

local M = {
  --- Greatest difference that is rounding, of logits of about 1 or less.
  limit = 1e-5,
}

local area = 'hugging_face.check'

-- Writes the logits of the folder's model for `rows` texts of `time` tokens, prints its version.
local script = [[
import sys, torch, transformers
from safetensors.torch import save_file
folder, out, rows, time, vocab = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
config = transformers.AutoConfig.from_pretrained(folder)
model = getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype=torch.float32)
with torch.no_grad():
    logits = model.eval()(torch.arange(rows * time).reshape(rows, time) * 7919 % vocab).logits
save_file({"logits": logits.float().contiguous()}, out)
print("transformers", transformers.__version__)
]]

local function quoted(text) return "'" .. text:gsub("'", [['\'']]) .. "'" end

-- Runs the script; returns the version.
local function ask(python, folder, out, ...)
  local words = { quoted(python), '-c', quoted(script), quoted(folder), quoted(out), ... }
  local pipe = io.popen(table.concat(words, ' ') .. ' 2>&1; echo "exit $?"')
  local said = pipe:read '*a'
  pipe:close()
  local text, code = said:match '^(.-)exit (%d+)\n$'
  local version = code == '0' and text:match 'transformers (%S+)\n$'
  if not version then
    fail('usage', area, ("'%s' could not compute the logits of '%s': %s"):format(python, folder,
      (text or said):match '([^\n]+)\n*$' or 'nothing was said'),
      'give a Python that has torch and transformers: --python PATH')
  end
  return version
end

---@class nnscaler.hugging_face.Comparison
---@field version string of the transformers library
---@field texts integer
---@field tokens integer of a text
---@field off number the greatest difference, relative to the greatest logit where that is above 1

--- Compares the logits; a state error where they differ by more than rounding.
---@param model nnscaler.nn.Module with its weights, in evaluation mode
---@param folder string a model folder
---@param python string a Python with torch and transformers
---@return nnscaler.hugging_face.Comparison
function M.compare(model, folder, python)
  local rows, time = 2, math.min(model.block, 64)
  local ids = T.arange(rows * time):mul(7919):remainder(model.vocab):view { rows, time }
  local out = os.tmpname()
  local ok, version = pcall(ask, python, folder, out, rows, time, model.vocab)
  local expected = ok and C.read_safetensors(out):read 'logits'
  os.remove(out)
  if not ok then error(version, 0) end
  local logits = T.no_grad(function() return select(2, model(ids)) end):to 'float32'
  local off = (logits - expected):abs():max():item()
    / math.max(1, expected:abs():max():item())
  if off > M.limit or off ~= off then
    fail('state', area, ("the logits of '%s' are %.3g off those of transformers %s; expected at "
      .. 'most %g'):format(folder, off, version, M.limit))
  end
  return { version = version, texts = rows, tokens = time, off = off }
end

--- What was found, in a line.
---@param found nnscaler.hugging_face.Comparison
---@return string
function M.describe(found)
  return ('logits of %d texts of %d tokens: at most %.1e off transformers %s'):format(found.texts,
    found.tokens, found.off, found.version)
end

return M
