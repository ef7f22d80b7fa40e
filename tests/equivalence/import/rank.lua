--- Trains a model that PyTorch exported (tests/equivalence/pytorch/export.py) as that script does;
--- returns how far losses, weights and buffers are from PyTorch's.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local F = require 'nnscaler.functional'
local import = require 'nnscaler.import'
local job = require 'nnscaler.job'
local nn = require 'nnscaler.nn'
local trainer = require 'nnscaler.trainer'

local STEPS, MICRO_BATCHES = 3, 2

-- What is only rounding, as a bias of keys that softmax cancels, is held against 1e-3.
local function distance(got, want)
  local norm = want:double():norm():item()
  return (got:double() - want:double()):norm():item() / math.max(norm, 1e-3)
end

-- A model of Lua around the exported one, which returns scores.
local Classifier = nn.class 'Classifier'
Classifier.forward_arg_names = { 'x', 'y' }
function Classifier:init(path) self.body = import(path) end
function Classifier:forward(s) return F.cross_entropy(self.body(s.x), s.y) end

return function(argument)
  local case = base.json_decode(argument)
  require('nnscaler.log').set_level 'error'
  local rows = case.rows or 6
  local stored = C.read_safetensors(case.values)
  local out = { losses = {}, far = {}, parameters = 0, buffers = 0 }
  local model = (case.loss_in_lua and Classifier or import)(case.model)
  local names = model.forward_arg_names
  local dataset = {
    get = function(_, n)
      local sample = {}
      for i, name in ipairs(names) do
        sample[name] = stored:read(('in/%d/%d'):format(n % MICRO_BATCHES, i - 1))
      end
      return sample
    end,
    ids = function(_, n) return { n } end,
  }
  local config = job.from_table {
    model = function() return model end, dataset = dataset,
    eager = case.eager, precision = 'fp64', seed = 3, threads = 1,
    micro_batch_size = rows, global_batch_size = rows * MICRO_BATCHES, max_train_steps = STEPS,
    pas_policy = case.policy, pas_config = case.config,
    compute_config = { plan_ngpus = case.plan, runtime_ngpus = case.ranks },
    optimizer = { type = 'sgd', args = { lr = case.rate or 0.1 } },
    checkpoint = { no_save = true }, enable_progress_bar = false,
    hook = {
      on_step_end = function(_, step, metrics)
        local want = stored:read('loss/' .. step - 1):item()
        out.losses[step] = math.abs(metrics.train_loss / want - 1)
      end,
      on_train_end = function()
        for _, p in ipairs(model:named_parameters()) do
          out.far[p.name] = distance(p.param:full(), stored:read('w/' .. p.name))
          out.parameters = out.parameters + 1
        end
        for _, b in ipairs(model:named_buffers()) do
          out.far[b.name] = distance(b.buffer:full(), stored:read('b/' .. b.name))
          out.buffers = out.buffers + 1
        end
      end,
    },
  }
  config.gen_savedir = nil
  trainer.new(config):run()
  return base.json_encode(out)
end
