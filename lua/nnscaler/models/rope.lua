--- Rotary positions: the tables of angles of a model, under the ways in which families slow turns
--- to reach further than the texts of their training, and the turning itself. Formulas are those of
--- `modeling_rope_utils` of the transformers library.
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local nn = require 'nnscaler.nn'

local M = {}

-- By type: what has to be given.
local numbers = {
  linear = { 'factor' },
  llama3 = { 'factor', 'low_freq_factor', 'high_freq_factor', 'original' },
  longrope = { 'original' },
}

local function above_zero(area, name, value)
  if type(value) ~= 'number' or value ~= value or value <= 0 then
    fail('usage', area, ('rope_scaling.%s = %s; expected a number above 0'):format(name,
      tostring(value)))
  end
end

-- LongRoPE has a divisor for each pair of a head.
local function check_divisors(area, a, name)
  local list = a.rope_scaling[name]
  local wanted = a.head_dim / 2
  if type(list) ~= 'table' or #list ~= wanted then
    fail('usage', area, ('rope_scaling.%s has %s; expected %d numbers, half of head_dim'):format(
      name, type(list) == 'table' and #list .. ' numbers' or 'no list', wanted))
  end
  for i, value in ipairs(list) do above_zero(area, ('%s[%d]'):format(name, i), value) end
end

--- Checks `rope_scaling` of a model's arguments.
---@param area string
---@param a table arguments with head_dim and rope_scaling
function M.check(area, a)
  local s = a.rope_scaling
  if type(s) ~= 'table' then
    fail('usage', area, ('rope_scaling = %s; expected a table with a type'):format(tostring(s)))
  end
  check.one_of(area, 'rope_scaling.type', s.type, { 'linear', 'llama3', 'longrope' })
  for _, name in ipairs(numbers[s.type]) do above_zero(area, name, s[name]) end
  if s.type == 'llama3' and s.high_freq_factor <= s.low_freq_factor then
    fail('usage', area, ('rope_scaling.high_freq_factor = %g; expected more than low_freq_factor = '
      .. '%g'):format(s.high_freq_factor, s.low_freq_factor))
  end
  if s.type == 'longrope' then
    check_divisors(area, a, 'short_factor')
    check_divisors(area, a, 'long_factor')
    for _, name in ipairs { 'factor', 'attention_factor' } do
      if s[name] ~= nil then above_zero(area, name, s[name]) end
    end
  end
end

-- What the frequencies are multiplied by, from the fastest. "linear" slows all of them; "llama3"
-- (Llama 3.1) those with fewer than low_freq_factor turns in `original`, and between
-- low_freq_factor and high_freq_factor turns by a share; "longrope" each by a divisor of its own.
local function slowed(a, divisors)
  local s, factors = a.rope_scaling, {}
  for i = 0, a.head_dim / 2 - 1 do
    local share = 0 -- of the frequency that is kept
    if s.type == 'llama3' then
      local turns = s.original * a.theta ^ (-2 * i / a.head_dim) / (2 * math.pi)
      share = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
      share = math.max(0, math.min(1, share))
    end
    factors[i + 1] = divisors and 1 / divisors[i + 1] or (1 - share) / s.factor + share
  end
  return T.tensor(factors, { dtype = 'float64' })
end

-- LongRoPE makes cos and sin larger by this, for the softmax over a longer text.
local function magnitude(a)
  local s = a.rope_scaling
  if not s or s.type ~= 'longrope' then return 1 end
  if s.attention_factor then return s.attention_factor end
  local factor = s.factor or a.block / s.original
  return factor <= 1 and 1 or math.sqrt(1 + math.log(factor) / math.log(s.original))
end

-- f (cos or sin) of position × frequency, [length, head_dim]: the two halves of a row are equal.
local function angles(a, length, f, divisors)
  return function()
    local steps = T.arange(0, a.head_dim, 2, { dtype = 'float64' })
    local frequency = (steps * (-math.log(a.theta) / a.head_dim)):exp()
    if a.rope_scaling then frequency = frequency * slowed(a, divisors) end
    local half = T.arange(length, { dtype = 'float64' }):unsqueeze(1) * frequency
    local table_, scale = f(aten.cat({ half, half }, -1)), magnitude(a)
    return scale == 1 and table_ or table_ * scale
  end
end

--- Holds the tables of angles; the layers read them.
---@class nnscaler.models.Rotary : nnscaler.nn.Module
local Rotary = nn.class 'Rotary'
M.Rotary = Rotary

local function register(self, prefix, a, length, divisors)
  for _, name in ipairs { 'cos', 'sin' } do
    self:register_buffer(prefix .. name, angles(a, length, T[name], divisors),
      { shape = { length, a.head_dim }, persistent = false })
  end
end

---@param a table block (the longest text, in tokens), head_dim, theta, rope_scaling
function Rotary:init(a)
  local s = a.rope_scaling or {}
  if s.type ~= 'longrope' then
    register(self, '', a, a.block)
    return
  end
  -- Texts within `original` are turned as in the training on short ones.
  self.short = math.min(a.block, s.original)
  register(self, 'short_', a, self.short, s.short_factor)
  if a.block > s.original then register(self, '', a, a.block, s.long_factor) end
end

--- cos and sin of positions, [time, head_dim].
---@param time integer how many, up to the end of the text
---@param first? integer the first of them, 0 by default
---@return nnscaler.Tensor cos, nnscaler.Tensor sin
function Rotary:tables(time, first)
  first = first or 0
  local cos, sin = self.cos, self.sin
  if self.short and first + time <= self.short then cos, sin = self.short_cos, self.short_sin end
  if time < cos.shape[1] then cos, sin = cos:narrow(0, first, time), sin:narrow(0, first, time) end
  return cos, sin
end

--- Turns queries or keys: element i and i + head_dim/2 of a head by the position's angle.
---@param x nnscaler.Tensor [batch, heads, time, head_dim]
---@param cos nnscaler.Tensor [time, head_dim]
---@param sin nnscaler.Tensor [time, head_dim]
---@return nnscaler.Tensor
function M.rotate(x, cos, sin)
  local left, right = unpack(x:chunk(2, -1))
  return x * cos + aten.cat({ -right, left }, -1) * sin
end

return M
