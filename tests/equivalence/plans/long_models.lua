--- Models whose graphs are long: recurrent cells unrolled step by step, and many tensors alive at
--- once. They are models of the plan matrix under "<name> <steps>", unlisted.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'

local M = {}

local WIDTH = 4

-- A tanh cell; its states stacked.
function M.rnn(steps)
  local Net = nn.class 'Rnn'
  function Net:init()
    self.i, self.h, self.o = nn.Linear(3, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
  end
  function Net:forward(s)
    local x = self.i(s.x)
    local h, out = x:new_zeros { x.shape[1], WIDTH }, {}
    for t = 0, steps - 1 do
      h = (x:select(1, t) + self.h(h)):tanh()
      out[#out + 1] = h
    end
    return self.o(T.stack(out, 1)):square():mean()
  end
  return Net
end

-- An LSTM cell with dropout on what it reads; its last state.
function M.lstm(steps)
  local Cell = nn.class 'Cell'
  function Cell:init()
    self.x, self.h = nn.Linear(3, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH, { bias = false })
  end
  function Cell:forward(x, h, c)
    local i, f, g, o = unpack((self.x(x) + self.h(h)):chunk(4, 1))
    c = f:sigmoid() * c + i:sigmoid() * g:tanh()
    return o:sigmoid() * c:tanh(), c
  end
  local Net = nn.class 'Lstm'
  function Net:init() self.cell, self.o = Cell(), nn.Linear(WIDTH, 2) end
  function Net:forward(s)
    local h = s.x:new_zeros { s.x.shape[1], WIDTH }
    local c = h
    for t = 0, steps - 1 do h, c = self.cell(F.dropout(s.x:select(1, t), 0.2), h, c) end
    return self.o(h):square():mean()
  end
  return Net
end

-- As many tensors as steps, alive until they are joined.
function M.cat(steps)
  local Net = nn.class 'Cat'
  function Net:init() self.a, self.b = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2) end
  function Net:forward(s)
    local parts = {}
    for t = 0, steps - 1 do parts[t + 1] = self.a(s.x:select(1, t)):relu() * (1 + t % 3) end
    return self.b(T.cat(parts, 0)):square():mean()
  end
  return Net
end

local makers = { rnn = M.rnn, lstm = M.lstm, cat = M.cat }

--- Adds a model and returns its name.
---@param name 'rnn'|'lstm'|'cat'
---@param steps integer
---@return string
function M.add(name, steps)
  local full, Net = ('%s %d'):format(name, steps), makers[name](steps)
  models[full] = { group = 'long', make = function() return Net() end,
    sample = function(g)
      return { x = T.randn({ 4, steps, 3 }, { generator = g, dtype = 'float64' }) }
    end }
  return full
end

for _, case in ipairs { { 'rnn', 1000 }, { 'lstm', 1000 }, { 'cat', 500 } } do
  M.add(unpack(case))
end

return M
