--- Models that write a buffer in every micro-batch: each known form of an average, a sum, a count.
--- { name, make() → model, sample(generator) }; float64.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'

local M = {}

-- `write(self, x, s)` gets the mean over a micro-batch of what the last layer makes, without
-- history.
local function form(name, write, more)
  local Net = nn.class 'Net'
  function Net:init()
    self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
    self:register_buffer('mean', T.full({ 2 }, 0.5, { dtype = 'float64' }))
    self:register_buffer('count', T.zeros({}, { dtype = 'int64' }))
    self:register_buffer('other', T.zeros({ 2 }, { dtype = 'float64' }))
    self:register_buffer('bias', T.zeros({ 2 }, { dtype = 'float64' }))
    self:register_buffer('sample', T.zeros({ 4, 3 }, { dtype = 'float64' }))
  end
  function Net:forward(s)
    local y = self.c(self.b(self.a(s.x):tanh()):tanh())
    if self.training then write(self, y:detach():mean(0), s) end
    return F.mse_loss(more and more(self, y) or y, s.y)
  end
  M[#M + 1] = { name = name, make = function() return Net():to 'float64' end,
    sample = function(g)
      local function randn(...) return T.randn({ ... }, { generator = g, dtype = 'float64' }) end
      return { x = randn(4, 3), y = randn(4, 2) }
    end }
  M[name] = #M
end

form('0.9 m + 0.1 x in place', function(self, x) self.mean:mul_(0.9):add_(x * 0.1) end)
form('0.9 m + 0.1 x as one', function(self, x) self.mean:copy_(self.mean * 0.9 + x * 0.1) end)
form('0.1 x + m · 0.9', function(self, x) self.mean:copy_(0.1 * x + 0.9 * self.mean) end)
form('with alpha', function(self, x) self.mean:mul_(0.9):add_(x, { alpha = 0.1 }) end)
form('lerp', function(self, x) self.mean:lerp_(x, 0.1) end)
form('m - 0.1 (m - x)', function(self, x) self.mean:sub_((self.mean - x) * 0.1) end)
form('(9 m + x) / 10', function(self, x) self.mean:copy_((self.mean * 9 + x) / 10) end)
form('-(0.1 x - -0.9 m)', function(self, x)
  self.mean:copy_((-(0.1 * x) - self.mean * 0.9):neg())
end)
form('squares', function(self, x) self.mean:mul_(0.99):addcmul_(x, x, { value = 0.01 }) end)
form('quotients', function(self, x) self.mean:addcdiv_(x, x:square() + 1) end)
form('a sum', function(self, x) self.mean:add_(x) end)
form('a count', function(self) self.count:add_(1) end)
form('the last one', function(self, x) self.mean:copy_(x) end)
form('the last one, in two', function(self, x)
  self.mean:copy_(x)
  self.other:copy_(x)
end)
form('an input', function(self, _, s) self.sample:copy_(s.x) end)
form('a copy of a weight', function(self) self.bias:copy_(self.c.bias:detach()) end)
form('zero', function(self) self.mean:zero_() end)
form('views of it', function(self, x)
  self.mean:view { 2, 1 }:mul_(0.5):add_(x:view { 2, 1 })
end)

-- Not linear in the buffer; read by the loss.
form('the greatest', function(self, x) self.mean:copy_(self.mean:maximum(x)) end)
form('read by the loss', function(self, x) self.mean:mul_(0.9):add_(x * 0.1) end,
  function(self, y) return y - self.mean end)

return M
