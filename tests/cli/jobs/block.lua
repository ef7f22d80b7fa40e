--- A module that a model makes several times: made parallel by a job (tests/cli/parts_spec.lua).
local F = require 'nnscaler.functional'
local nn = require 'nnscaler.nn'

local Block = nn.class 'Block'
function Block:init(args)
  local width = args.width
  self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
  self.drop = nn.Dropout(args.share)
end
function Block:forward(x) return x + self.drop(self.down(F.gelu(self.up(x)))) end
return Block
