-- Optimizers move weights of several shapes as PyTorch's do, in float64.
local C = require 'nnscaler._C.checkpoint'
local optim = require 'nnscaler.optim'
local python = require 'tests.equivalence.pytorch.python'

local steps = 6
local names = { 'wide', 'tall', 'vector', 'stack' }
local kinds = {
  adamw = { type = 'adamw', args = { lr = 0.02, betas = { 0.8, 0.95 }, weight_decay = 0.3 } },
  adam = { type = 'adam', args = { lr = 0.02, weight_decay = 0.1 } },
  sgd = { type = 'sgd', args = { lr = 0.1, momentum = 0.9, dampening = 0.2,
    weight_decay = 0.05 } },
  adafactor = { type = 'adafactor' },
  adafactor_set = { type = 'adafactor', args = { lr = 0.3, beta2_decay = -0.5, eps = { 1e-6, 1e-2 },
    d = 1.5, weight_decay = 0.1 } },
  muon = { type = 'muon' },
  muon_set = { type = 'muon', args = { lr = 0.05, weight_decay = 0.2, momentum = 0.8,
    nesterov = false, ns_steps = 3, adjust_lr_fn = 'match_rms_adamw' } },
}

describe('optimizers equal PyTorch', function()
  local folder
  setup(function() folder = python.written_by 'optimizers.py' end)
  teardown(python.remove)

  for _, kind in ipairs { 'adamw', 'adam', 'sgd', 'adafactor', 'adafactor_set', 'muon',
    'muon_set' } do
    it(kind, function()
      if not folder then return pending(python.missing) end
      local stored = C.read_safetensors(folder .. '/optimizers.safetensors')
      local parameters = {}
      for _, name in ipairs(names) do
        local data = stored:read('w0/' .. name)
        if #data.shape == 2 or not kind:find 'muon' then
          parameters[#parameters + 1] = { name = name, data = data, requires_grad = true }
        end
      end
      local optimizer = optim.new(kinds[kind], parameters)
      for step = 1, steps do
        optimizer:collect(function(name) return stored:read(('g/%d/%s'):format(step, name)) end)
        optimizer:step(optimizer.lr)
      end
      for _, p in ipairs(parameters) do
        local want = stored:read(kind .. '/' .. p.name)
        local d = (p.data - want):norm():item() / want:norm():item()
        assert.is_true(d <= 1e-13, ('%s differs by %.3g'):format(p.name, d))
      end
    end)
  end
end)
