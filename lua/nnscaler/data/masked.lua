--- Masked tokens, what BERT learns from: of each text of a sequence a share of the tokens is
--- chosen; of those, 80 % become the mask, 10 % a random token, 10 % stay. Labels are the chosen
--- tokens, -100 elsewhere. A pure function of seed and number of the micro-batch.
local C = require 'nnscaler._C.data'
local T = require 'nnscaler.tensor'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'

---@class nnscaler.data.MaskedLoader : nnscaler.Loader
local Loader = {}
Loader.__index = Loader

---@param n integer
---@return { x: nnscaler.Tensor, y: nnscaler.Tensor }
function Loader:get(n)
  local x, o = self.inner:get(n).x, self.options
  local draws = C.uniform('data:masked', self.seed, n, 3 * x:numel()):view { 3, unpack(x.shape) }
  local chosen, how = draws[0]:lt(o.share), draws[1]
  local random = (draws[2] * o.tokens):floor():clamp_max(o.tokens - 1):to 'int64'
  local changed = T.where(how:lt(0.1), random, x):masked_fill(how:ge(0.2), o.mask)
  return { x = T.where(chosen, changed, x), y = x:masked_fill(chosen:logical_not(), -100) }
end

---@param n integer
---@return integer[]
function Loader:ids(n) return self.inner:ids(n) end

---@class nnscaler.data.Masked
---@field vocab integer ids are below
---@field block integer tokens of a text
---@field mask integer id of the mask
local Masked = {}
Masked.__index = Masked

local function loader(self, inner, seed)
  if not inner then return nil end
  return setmetatable({ inner = inner, per_epoch = inner.per_epoch, seed = seed, options = self },
    Loader)
end

---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader
function Masked:training_loader(options)
  return loader(self, self.sequence:training_loader(options), options.seed or 0)
end

--- The same tokens are chosen in every pass.
---@param options nnscaler.LoaderOptions
---@return nnscaler.Loader|nil
function Masked:validation_loader(options)
  return loader(self, self.sequence:validation_loader(options), 0)
end

--- Returns a data set.
---@param sequence nnscaler.data.Sequence what data.characters or data.tokens returned
---@param options? { mask?: integer, share?: number } mask: id of the mask among the sequence's
---   tokens; by default one behind them all; share: of tokens that are chosen, 0.15 by default
---@return nnscaler.data.Masked
return function(sequence, options)
  local area = 'data.masked'
  if type(sequence) ~= 'table' or not sequence.vocab or not sequence.training_loader then
    fail('usage', area, ('the sequence is a %s; expected what data.characters or data.tokens '
      .. 'returned'):format(type(sequence)))
  end
  local o = check.options(area, options, { mask = check.none, share = 0.15 })
  if o.mask and check.integer(area, 'mask', o.mask, 0) >= sequence.vocab then
    fail('usage', area, ('mask = %d; the tokens are below %d'):format(o.mask, sequence.vocab))
  end
  return setmetatable({ sequence = sequence, tokens = sequence.vocab,
    share = check.probability(area, o.share), mask = o.mask or sequence.vocab,
    vocab = o.mask and sequence.vocab or sequence.vocab + 1, block = sequence.block }, Masked)
end
