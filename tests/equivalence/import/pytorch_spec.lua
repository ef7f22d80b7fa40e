-- A model that PyTorch exported trains as in PyTorch: three steps of descent over two micro-batches
-- give its losses, weights and buffers (float64), eagerly and under every kind of plan.
local C = require 'nnscaler._C.checkpoint'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local python = require 'tests.equivalence.pytorch.python'

-- ranks, plan_ngpus, policy
local plans = {
  { 1, 1, 'eager' }, { 1, 1, 'dp' }, { 2, 1, 'dp' }, { 2, 2, 'tp' }, { 2, 2, 'pp' },
  { 2, 2, 'data' }, { 2, 1, 'fsdp' }, { 4, 4, 'hybrid' },
}

-- Those with one scale unit and one stage, which buffers made of each other need.
local whole = { { 1, 1, 'eager' }, { 1, 1, 'dp' }, { 2, 2, 'tp' }, { 2, 2, 'data' } }

describe('an exported model trains as in PyTorch,', function()
  local folder
  setup(function() folder = python.written_by 'export.py' end)
  teardown(function() python.remove() end)

  local names = { 'mlp', 'gpt', 'resnet', 'body', 'norms', 'spectral', 'decomposed' }
  for _, name in ipairs(names) do
    for _, plan in ipairs(name == 'spectral' and whole or plans) do
      local ranks, units, policy = plan[1], plan[2], plan[3]
      it(('%s under %s on %d'):format(name, policy, ranks), function()
        if not folder then return pending(python.missing) end
        local path = folder .. '/' .. name
        local counts = { w = 0, b = 0, loss = 0 }
        for _, key in ipairs(C.read_safetensors(path .. '.safetensors'):names()) do
          local kind = key:match '^[^/]+'
          counts[kind] = (counts[kind] or 0) + 1
        end
        for rank, got in ipairs(on_ranks(ranks, 'tests.equivalence.import.rank', {
          model = path .. '.pt2', values = path .. '.safetensors', ranks = ranks, plan = units,
          eager = policy == 'eager', policy = policy ~= 'eager' and policy or nil,
          loss_in_lua = name == 'body',
        })) do
          assert.same({ counts.loss, counts.w, counts.b }, { #got.losses, got.parameters,
            got.buffers })
          for step, off in ipairs(got.losses) do
            assert.is_true(off <= 1e-10, ('rank %d, loss of step %d is off by %.3g'):format(
              rank - 1, step, off))
          end
          for key, off in pairs(got.far) do
            assert.is_true(off <= 1e-10, ('rank %d, %s is off by %.3g'):format(rank - 1, key, off))
          end
        end
      end)
    end
  end
end)
