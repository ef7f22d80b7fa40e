--- Models that draw noise in forward, unlisted models of the plan matrix.
local F = require 'nnscaler.functional'
local T = require 'nnscaler.tensor'
local models = require 'tests.equivalence.plans.models'
local nn = require 'nnscaler.nn'

local function add(name, forward)
  local Net = nn.class 'Net'
  function Net:init()
    self.mu, self.logvar, self.dec = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 4)
  end
  Net.forward = forward
  models[name] = { group = 'noise', make = function() return Net() end,
    sample = function(g)
      return { x = T.randn({ 4, 4 }, { generator = g, dtype = 'float64' }) }
    end }
end

-- Noise of a variational auto-encoder.
add('noise normal', function(self, s)
  local z = F.normal(self.mu(s.x), (self.logvar(s.x) / 2):exp())
  return (self.dec(z) - s.x):square():mean()
end)
add('noise randn_like', function(self, s)
  local mu = self.mu(s.x)
  return (self.dec(mu + mu:randn_like() * self.logvar(s.x)) - s.x):square():mean()
end)
add('noise rand_like', function(self, s)
  local mu = self.mu(s.x)
  return (self.dec(mu * F.rand_like(mu) + F.rand_like(mu)) - s.x):square():mean()
end)
add('noise bernoulli', function(self, s)
  local mu = self.mu(s.x)
  return (self.dec(mu * F.bernoulli(self.logvar(s.x):sigmoid():detach())) - s.x):square():mean()
end)
