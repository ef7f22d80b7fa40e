--- Single steps of recurrent layers, for loops of one's own.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

local function set_up(self, gates, input_size, hidden_size, o)
  local area = 'nn.' .. self.class_name
  self.input_size = check.integer(area, 'input_size', input_size)
  self.hidden_size = check.integer(area, 'hidden_size', hidden_size)
  local rows, how = gates * hidden_size, init.linear_default(hidden_size)
  local function parameter(name, ...)
    self[name] = kinds.parameter { shape = { ... }, dtype = o.dtype, init = how }
  end
  parameter('weight_ih', rows, input_size)
  parameter('weight_hh', rows, hidden_size)
  if o.bias then
    parameter('bias_ih', rows)
    parameter('bias_hh', rows)
  end
end

local function check_input(self, x)
  if x.shape[x:dim()] ~= self.input_size then
    fail('model', 'nn.' .. self.class_name, ('input [%s]; expected [batch, %d] or [%d]'):format(
      table.concat(x.shape, ', '), self.input_size, self.input_size))
  end
end

-- A first state of zeros for the input.
local function zeros(self, x)
  local shape = { unpack(x.shape) }
  shape[#shape] = self.hidden_size
  return x:new_zeros(shape)
end

--- h' = tanh(W_ih x + b_ih + W_hh h + b_hh).
---@class nnscaler.nn.RNNCell : nnscaler.nn.Module
M.RNNCell = Module.class 'RNNCell'

---@param input_size integer
---@param hidden_size integer
---@param options? { bias?: boolean, nonlinearity?: 'tanh'|'relu', dtype?: string }
function M.RNNCell:init(input_size, hidden_size, options)
  local o = check.options('nn.RNNCell', options,
    { bias = true, nonlinearity = 'tanh', dtype = 'float32' })
  check.one_of('nn.RNNCell', 'nonlinearity', o.nonlinearity, { 'tanh', 'relu' })
  self.nonlinearity = o.nonlinearity
  set_up(self, 1, input_size, hidden_size, o)
end

---@param x nnscaler.Tensor [batch, input_size]
---@param h? nnscaler.Tensor [batch, hidden_size]
---@return nnscaler.Tensor # [batch, hidden_size]
function M.RNNCell:forward(x, h)
  check_input(self, x)
  h = h or zeros(self, x)
  return F[self.nonlinearity](F.linear(x, self.weight_ih, self.bias_ih)
    + F.linear(h, self.weight_hh, self.bias_hh))
end

--- One step of an LSTM.
---@class nnscaler.nn.LSTMCell : nnscaler.nn.Module
M.LSTMCell = Module.class 'LSTMCell'

---@param input_size integer
---@param hidden_size integer
---@param options? { bias?: boolean, dtype?: string }
function M.LSTMCell:init(input_size, hidden_size, options)
  set_up(self, 4, input_size, hidden_size, check.options('nn.LSTMCell', options,
    { bias = true, dtype = 'float32' }))
end

---@param x nnscaler.Tensor [batch, input_size]
---@param state? nnscaler.Tensor[] { h, c }, each [batch, hidden_size]
---@return nnscaler.Tensor h
---@return nnscaler.Tensor c
function M.LSTMCell:forward(x, state)
  check_input(self, x)
  local h, c = unpack(state or { zeros(self, x), zeros(self, x) })
  local gates = F.linear(x, self.weight_ih, self.bias_ih)
    + F.linear(h, self.weight_hh, self.bias_hh)
  local input, forget, cell, output = unpack(gates:chunk(4, -1))
  c = forget:sigmoid() * c + input:sigmoid() * cell:tanh()
  return output:sigmoid() * c:tanh(), c
end

--- One step of a GRU.
---@class nnscaler.nn.GRUCell : nnscaler.nn.Module
M.GRUCell = Module.class 'GRUCell'

---@param input_size integer
---@param hidden_size integer
---@param options? { bias?: boolean, dtype?: string }
function M.GRUCell:init(input_size, hidden_size, options)
  set_up(self, 3, input_size, hidden_size, check.options('nn.GRUCell', options,
    { bias = true, dtype = 'float32' }))
end

---@param x nnscaler.Tensor [batch, input_size]
---@param h? nnscaler.Tensor [batch, hidden_size]
---@return nnscaler.Tensor # [batch, hidden_size]
function M.GRUCell:forward(x, h)
  check_input(self, x)
  h = h or zeros(self, x)
  local xr, xz, xn = unpack(F.linear(x, self.weight_ih, self.bias_ih):chunk(3, -1))
  local hr, hz, hn = unpack(F.linear(h, self.weight_hh, self.bias_hh):chunk(3, -1))
  local n = (xn + (xr + hr):sigmoid() * hn):tanh()
  return n + (xz + hz):sigmoid() * (h - n)
end

return M
