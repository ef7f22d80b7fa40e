--- Dropout. Which elements fall is a function of the run's seed, the step, the micro-batch, this
--- module's path and the index of the element: there is no generator.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local check = require 'nnscaler.nn.check'

local M = {}

-- A class of a function f(x, p, training).
local function class(name, f)
  M[name] = Module.class(name)
  M[name].init = function(self, p) self.p = check.probability('nn.' .. name, p or 0.5) end
  M[name].forward = function(self, x)
    if self.p == 0 or not self.training then return x end
    return f(x, self.p, true)
  end
end

--- Dropout(p = 0.5): in training, zeroes elements with probability p and scales the rest by
--- 1 / (1 - p).
---@class nnscaler.nn.Dropout : nnscaler.nn.Module
class('Dropout', F.dropout)
--- The same for whole channels of [batch, channels, length].
---@class nnscaler.nn.Dropout1d : nnscaler.nn.Module
class('Dropout1d', F.dropout1d)
--- The same for whole channels of [batch, channels, height, width].
---@class nnscaler.nn.Dropout2d : nnscaler.nn.Module
class('Dropout2d', F.dropout2d)
--- The same for whole channels of [batch, channels, depth, height, width].
---@class nnscaler.nn.Dropout3d : nnscaler.nn.Module
class('Dropout3d', F.dropout3d)
--- Dropout for networks of SELU units: keeps mean and variance.
---@class nnscaler.nn.AlphaDropout : nnscaler.nn.Module
class('AlphaDropout', F.alpha_dropout)
--- The same for whole channels of [batch, channels, …].
---@class nnscaler.nn.FeatureAlphaDropout : nnscaler.nn.Module
class('FeatureAlphaDropout', F.feature_alpha_dropout)

return M
