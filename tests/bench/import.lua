--- A model that PyTorch exported, with a watch, for import.py: `exported=FOLDER/NAME` has the
--- program and its arguments beside it; `cpu=FILE` gets the CPU seconds of each step, `opened=FILE`
--- the seconds from path to module, in which no weight is read.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local nnscaler = require 'nnscaler'

local here = debug.getinfo(1, 'S').source:match '^@(.*)/'
local p = nnscaler.params {
  exported = { '', 'path without its ending' },
  cpu = { '', 'file for the CPU seconds of each step' },
  opened = { '', 'file for the seconds of the import' },
}
local stored = C.read_safetensors(p.exported .. '.safetensors')
local function open()
  local start = base.clock()
  local model = nnscaler.import(p.exported .. '.pt2')
  base.file_write(p.opened, ('%.6f'):format(base.clock() - start))
  return model
end
local sample = { get = function() return { stored:read '0', stored:read '1' } end }
function sample.ids(_, n) return { n } end

return {
  model = open, dataset = sample, forward_args = function(s) return s[1], s[2] end,
  micro_batch_size = stored:info('0').shape[1], optimizer = { type = 'sgd', args = { lr = 1e-3 } },
  hook = dofile(here .. '/watch.lua')(p.cpu),
}
