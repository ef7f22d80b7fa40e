--- Llama with its weights out of a model folder, with a watch, for llama.py: `folder` has
--- batches.bin with x and y beside the model, `cpu=FILE` gets the CPU seconds of each step,
--- `memory=FILE` the kilobytes that were resident before the model, and at most.
local C = require 'nnscaler._C.checkpoint'
local nnscaler = require 'nnscaler'

local here = debug.getinfo(1, 'S').source:match '^@(.*)/'
local p = nnscaler.params {
  folder = { '', 'model folder with batches.bin' },
  chunk = { 0, 'tokens whose logits exist at a time, 0: all', min = 0 },
  cpu = { '', 'file for the CPU seconds of each step' },
  memory = { '', 'file for kilobytes before the model and at most' },
}

local function kilobytes(field)
  for line in io.lines '/proc/self/status' do
    local n = line:match('^' .. field .. ':%s*(%d+)')
    if n then return n end
  end
end

local stored = C.read_safetensors(p.folder .. '/batches.bin')
local count, batch, time = unpack(stored:info('x').shape) -- of micro-batches, of samples, of tokens
local data = {}
function data.get(_, n)
  local function part(name) return stored:read(name):select(0, n % count) end
  return { x = part 'x', y = part 'y' }
end
function data.ids(_, n) return { n } end

local before
local hook = dofile(here .. '/watch.lua')(p.cpu)
function hook.on_train_end()
  local file = assert(io.open(p.memory, 'a'))
  file:write(('%s %s\n'):format(before, kilobytes 'VmHWM'))
  file:close()
end

return {
  model = function()
    before = kilobytes 'VmRSS'
    return nnscaler.from_pretrained(p.folder, { block = time,
      loss_chunk = p.chunk > 0 and p.chunk or nil })
  end,
  dataset = data, micro_batch_size = batch, hook = hook,
  optimizer = { type = 'adamw', args = { lr = 1e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1 } },
}
