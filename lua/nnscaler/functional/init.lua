--- Operators of networks as functions: F.linear(x, w, b), F.gelu(x), F.cross_entropy(logits, ids).
--- Arguments in PyTorch's order; options that PyTorch takes by keyword stand in a last table.
--- docs/torch-nn.md lists them beside PyTorch's.
local sorted = require 'nnscaler.sorted'

local M = {}

for _, family in ipairs {
  'product', 'norm', 'activation', 'noise', 'pool', 'image', 'distance', 'loss', 'margin',
} do
  for name, f in sorted.sorted_pairs(require('nnscaler.functional.' .. family)) do M[name] = f end
end

return M
