--- Building blocks of models: `local nn = require 'nnscaler.nn'`.
local Module = require 'nnscaler.nn.module'
local kinds = require 'nnscaler.nn.kinds'
local sorted = require 'nnscaler.sorted'

---@class nnscaler.nn
local M = {
  Module = Module,
  --- nn.class(name[, parent]) makes a class of modules.
  class = Module.class,
  --- nn.Parameter { shape =, init = } makes a parameter.
  Parameter = kinds.parameter,
  --- How parameters get their first values.
  init = require 'nnscaler.nn.initializers',
  --- Parametrisations: nn.utils.parametrizations.weight_norm(layer).
  utils = require 'nnscaler.nn.utils',
}

for _, family in ipairs {
  'container', 'linear', 'embedding', 'norm', 'dropout', 'activation', 'conv', 'pool', 'shape',
  'attention', 'transformer', 'recurrent', 'cell', 'experts', 'loss',
} do
  for name, class in sorted.sorted_pairs(require('nnscaler.nn.' .. family)) do M[name] = class end
end

return M
