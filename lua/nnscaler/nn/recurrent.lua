--- Recurrent layers: RNN, LSTM and GRU over whole sequences, each stack one operator. Sequences of
--- unequal lengths stand side by side, padded; `lengths` says where each ends.
local Module = require 'nnscaler.nn.module'
local T = require 'nnscaler.tensor'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'
local sorted = require 'nnscaler.sorted'

local M = {}

local defaults = { num_layers = 1, bias = true, batch_first = false, dropout = 0,
  bidirectional = false, dtype = 'float32' }

-- --- parameters ----------------------------------------------------------------------------------

-- Weights and biases of all layers and directions, by PyTorch's names and in its order.
local function add_parameters(self, gates, o)
  local function parameter(name, ...)
    self[name] = kinds.parameter { shape = { ... }, dtype = o.dtype, init = self.first }
    self.names[#self.names + 1] = name
  end
  local rows, width = gates * self.hidden_size, self.width
  for layer = 0, self.num_layers - 1 do
    for direction = 1, self.directions do
      local tail = ('l%d%s'):format(layer, direction == 2 and '_reverse' or '')
      local inputs = layer == 0 and self.input_size or width * self.directions
      parameter('weight_ih_' .. tail, rows, inputs)
      parameter('weight_hh_' .. tail, rows, width)
      if o.bias then
        parameter('bias_ih_' .. tail, rows)
        parameter('bias_hh_' .. tail, rows)
      end
      if width ~= self.hidden_size then
        parameter('weight_hr_' .. tail, width, self.hidden_size)
      end
    end
  end
  self.each = #self.names / (self.num_layers * self.directions)
end

local function set_up(self, gates, input_size, hidden_size, o)
  local area = 'nn.' .. self.class_name
  self.input_size = check.integer(area, 'input_size', input_size)
  self.hidden_size = check.integer(area, 'hidden_size', hidden_size)
  self.num_layers = check.integer(area, 'num_layers', o.num_layers)
  self.bias, self.batch_first = o.bias, o.batch_first
  self.dropout = check.probability(area, o.dropout)
  if self.dropout > 0 and self.num_layers == 1 then
    fail('usage', area, 'dropout with one layer; expected 0, since it lies between layers')
  end
  self.directions = o.bidirectional and 2 or 1
  self.first, self.names = init.linear_default(hidden_size), {}
  self.width = check.integer(area, 'proj_size', o.proj_size or 0, 0)
  if self.width >= hidden_size then
    fail('usage', area, ('proj_size = %d; expected less than hidden_size %d'):format(self.width,
      hidden_size))
  end
  if self.width == 0 then self.width = hidden_size end
  add_parameters(self, gates, o)
end

-- Parameters of the runs (a run is a direction of a layer) from `first`, from 0.
local function parameters_of(self, first, count)
  local list = {}
  for i = first * self.each + 1, (first + count) * self.each do
    list[#list + 1] = self[self.names[i]]
  end
  return list
end

-- --- states --------------------------------------------------------------------------------------

-- The first state as a list of one tensor, or two of an LSTM: [runs, batch, width].
local function first_state(self, x, hx, batch, unbatched)
  local area, runs = 'nn.' .. self.class_name, self.num_layers * self.directions
  local widths = self.is_lstm and { self.width, self.hidden_size } or { self.width }
  local list = {}
  if hx ~= nil then
    list = self.is_lstm and hx or { hx }
    if type(list) ~= 'table' or #list ~= #widths then
      fail('model', area, 'the first state is no pair; expected { h_0, c_0 }')
    end
  end
  local checked = {}
  for i, width in ipairs(widths) do
    local state = list[i]
    if not state then
      state = x:new_zeros { runs, batch, width }
    else
      if unbatched and state:dim() == 2 then state = state:unsqueeze(1) end
      local shape = state.shape
      if #shape ~= 3 or shape[1] ~= runs or shape[2] ~= batch or shape[3] ~= width then
        fail('model', area, ('a first state of shape [%s]; expected [%d, %d, %d]'):format(
          table.concat(shape, ', '), runs, batch, width))
      end
    end
    checked[i] = state
  end
  return checked
end

-- Calls the operator for `layers` layers whose parameters are given; returns the output and the
-- last states as a list.
local function call(self, x, states, parameters, layers, both)
  local hx = self.is_lstm and states or states[1]
  local results = { self.operator(x, hx, parameters, self.bias, layers, 0, self.training, both,
    self.batch_first) }
  return table.remove(results, 1), results
end

local function part_of(states, first, count)
  local list = {}
  for i, state in ipairs(states) do list[i] = state:narrow(0, first, count) end
  return list
end

-- --- unequal lengths -----------------------------------------------------------------------------

-- What lengths [batch] mean for steps of the axis `time`: [time, batch, 1] or [batch, time, 1].
local function ends(self, x, lengths, area)
  local time = self.batch_first and 1 or 0
  if not T.is_tensor(lengths) or lengths:dim() ~= 1 or lengths.shape[1] ~= x.shape[2 - time]
    or lengths:is_floating_point() then
    fail('model', area, ('lengths are %s; expected a tensor of %d integers'):format(
      T.is_tensor(lengths) and ('%s [%s]'):format(lengths.dtype,
        table.concat(lengths.shape, ', ')) or 'a ' .. type(lengths), x.shape[2 - time]))
  end
  lengths = lengths:to 'int64'
  local steps = lengths:new_ones({ x.shape[time + 1] }):cumsum(0) - 1
  steps = steps:unsqueeze(1 - time):unsqueeze(-1)
  local last = lengths:unsqueeze(time):unsqueeze(-1) - 1
  local live = steps:le(last)
  return { time = time, last = last, live = live,
    -- Turns each sequence round within its length.
    turned = T.where(live, last - steps, steps) }
end

local function gathered(x, at, places)
  local shape = { unpack(places.shape) }
  shape[3] = x.shape[3]
  return x:gather(at.time, places:expand(shape))
end

-- Padded steps of an LSTM shall keep its cell: an input more, far from 0 at those, shuts the input
-- gate and opens the forget gate altogether.
local FAR = 1e4
local function keep_cell(self, x, parameters, at)
  local flag = at.live:logical_not():to(x.dtype) * FAR
  local weight = parameters[1]
  local function rows(n, value) return weight:new_full({ n * self.hidden_size, 1 }, value) end
  local column = T.cat({ rows(1, -1), rows(1, 1), rows(2, 0) }, 0)
  parameters[1] = T.cat({ weight, column }, 1)
  return T.cat({ x, flag }, 2)
end

-- One direction of one layer.
local function padded_run(self, x, states, run, at, reverse)
  local parameters = parameters_of(self, run, 1)
  if reverse then x = gathered(x, at, at.turned) end
  if self.is_lstm then x = keep_cell(self, x, parameters, at) end
  local y, last = call(self, x, part_of(states, run, 1), parameters, 1, false)
  last[1] = gathered(y, at, at.last)
  if self.batch_first then last[1] = last[1]:transpose(0, 1) end
  if reverse then y = gathered(y, at, at.turned) end
  return y:masked_fill(at.live:logical_not(), 0), last
end

-- --- the whole -----------------------------------------------------------------------------------

-- Layer by layer, with dropout between them: where there are lengths, each direction by itself.
local function layer_by_layer(self, x, states, at)
  local list = {}
  local function keep(last)
    for i, state in ipairs(last) do
      list[i] = list[i] or {}
      table.insert(list[i], state)
    end
  end
  for layer = 0, self.num_layers - 1 do
    if layer > 0 and self.dropout > 0 and self.training then
      x = aten.dropout(x, self.dropout, true)
    end
    local run = layer * self.directions
    if not at then
      local y, last = call(self, x, part_of(states, run, self.directions),
        parameters_of(self, run, self.directions), 1, self.directions == 2)
      x = y
      keep(last)
    else
      local results = {}
      for direction = 1, self.directions do
        local y, last = padded_run(self, x, states, run + direction - 1, at, direction == 2)
        results[direction] = y
        keep(last)
      end
      x = #results == 2 and T.cat(results, 2) or results[1]
    end
  end
  local last = {}
  for i, tensors in ipairs(list) do last[i] = #tensors > 1 and T.cat(tensors, 0) or tensors[1] end
  return x, last
end

local function forward(self, x, hx, options)
  local area = 'nn.' .. self.class_name
  local o = check.options(area, options, { lengths = check.none })
  local unbatched, axis = x:dim() == 2, self.batch_first and 0 or 1
  if unbatched then x = x:unsqueeze(axis) end
  if x:dim() ~= 3 or x.shape[3] ~= self.input_size then
    fail('model', area, ('input [%s]; expected [%s, %d]'):format(table.concat(x.shape, ', '),
      self.batch_first and 'batch, time' or 'time, batch', self.input_size))
  end
  local states = first_state(self, x, hx, x.shape[axis + 1], unbatched)
  local at = o.lengths and ends(self, x, o.lengths, area)
  local y, last
  if at or self.dropout > 0 and self.training then
    y, last = layer_by_layer(self, x, states, at)
  else
    local runs = self.num_layers * self.directions
    y, last = call(self, x, states, parameters_of(self, 0, runs), self.num_layers,
      self.directions == 2)
  end
  if unbatched then
    y = y:squeeze(axis)
    for i, state in ipairs(last) do last[i] = state:squeeze(1) end
  end
  return y, self.is_lstm and last or last[1]
end

---@class nnscaler.RecurrentOptions
---@field num_layers? integer 1
---@field bias? boolean true
---@field batch_first? boolean whether tensors are [batch, time, width], not [time, batch, width]
---@field dropout? number between layers in training, 0
---@field bidirectional? boolean whether another run goes from the end to the beginning
---@field dtype? string

--- h = tanh(W_ih x + b_ih + W_hh h + b_hh), step by step.
---@class nnscaler.nn.RNN : nnscaler.nn.Module
---@field weight_ih_l0 nnscaler.Tensor [hidden_size, input_size], and so on for each layer
M.RNN = Module.class 'RNN'

---@param input_size integer
---@param hidden_size integer
---@param options? nnscaler.RecurrentOptions with nonlinearity ('tanh' or 'relu')
function M.RNN:init(input_size, hidden_size, options)
  local names = { nonlinearity = 'tanh' }
  for name, value in sorted.sorted_pairs(defaults) do names[name] = value end
  local o = check.options('nn.RNN', options, names)
  check.one_of('nn.RNN', 'nonlinearity', o.nonlinearity, { 'tanh', 'relu' })
  self.operator = aten[('rnn_%s.input'):format(o.nonlinearity)]
  set_up(self, 1, input_size, hidden_size, o)
end

---@param x nnscaler.Tensor [time, batch, input_size], [batch, time, …] with batch_first, or
---   [time, input_size]
---@param hx? nnscaler.Tensor first state [layers · directions, batch, hidden_size]; zeros
---@param options? { lengths?: nnscaler.Tensor } int64 [batch]: steps of each sequence, at least 1;
---   what comes behind counts for nothing, and the output is 0 there
---@return nnscaler.Tensor output of the last layer at each step
---@return nnscaler.Tensor state last state of each layer and direction
function M.RNN:forward(x, hx, options) return forward(self, x, hx, options) end

--- Gated recurrent unit (Cho 2014).
---@class nnscaler.nn.GRU : nnscaler.nn.Module
---@field weight_ih_l0 nnscaler.Tensor [3 hidden_size, input_size], and so on for each layer
M.GRU = Module.class 'GRU'

---@param input_size integer
---@param hidden_size integer
---@param options? nnscaler.RecurrentOptions
function M.GRU:init(input_size, hidden_size, options)
  self.operator = aten['gru.input']
  set_up(self, 3, input_size, hidden_size, check.options('nn.GRU', options, defaults))
end

---@param x nnscaler.Tensor as of RNN
---@param hx? nnscaler.Tensor
---@param options? { lengths?: nnscaler.Tensor }
---@return nnscaler.Tensor output
---@return nnscaler.Tensor state
function M.GRU:forward(x, hx, options) return forward(self, x, hx, options) end

--- Long short-term memory (Hochreiter 1997).
---@class nnscaler.nn.LSTM : nnscaler.nn.Module
---@field weight_ih_l0 nnscaler.Tensor [4 hidden_size, input_size], and so on for each layer
M.LSTM = Module.class 'LSTM'

---@param input_size integer
---@param hidden_size integer
---@param options? nnscaler.RecurrentOptions with proj_size (width of projected outputs, 0: none)
function M.LSTM:init(input_size, hidden_size, options)
  local names = { proj_size = 0 }
  for name, value in sorted.sorted_pairs(defaults) do names[name] = value end
  self.operator, self.is_lstm = aten['lstm.input'], true
  set_up(self, 4, input_size, hidden_size, check.options('nn.LSTM', options, names))
end

---@param x nnscaler.Tensor as of RNN
---@param hx? nnscaler.Tensor[] { h_0, c_0 }
---@param options? { lengths?: nnscaler.Tensor }
---@return nnscaler.Tensor output
---@return nnscaler.Tensor[] state { h_n, c_n }
function M.LSTM:forward(x, hx, options) return forward(self, x, hx, options) end

return M
