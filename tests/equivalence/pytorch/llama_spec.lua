-- A LLaMA with grouped, single and plain heads has the loss and gradients of one written in PyTorch
-- (llama.py), in float64, eagerly and as a generated program.
local C = require 'nnscaler._C.checkpoint'
local Llama = require 'nnscaler.models.llama'
local log = require 'nnscaler.log'
local python = require 'tests.equivalence.pytorch.python'

local cases = {
  grouped = { vocab = 19, layers = 2, heads = 4, kv_heads = 2, width = 16, hidden = 24, block = 8 },
  one_kv_head_tied = { vocab = 13, layers = 1, heads = 3, kv_heads = 1, width = 12, hidden = 20,
    block = 9, theta = 10000, tied = true },
  plain_wide_heads = { vocab = 11, layers = 2, heads = 2, width = 8, hidden = 12, head_dim = 6,
    block = 7, theta = 100 },
}

describe('LLaMA equals PyTorch', function()
  local folder
  setup(function()
    log.set_level 'warning'
    folder = python.written_by 'llama.py'
  end)
  teardown(function()
    log.set_level 'info'
    python.remove()
  end)

  for _, name in ipairs { 'grouped', 'one_kv_head_tied', 'plain_wide_heads' } do
    for _, engine in ipairs { 'eager', 'program' } do
      it(('%s, %s'):format(name, engine), function()
        if not folder then return pending(python.missing) end
        local stored = C.read_safetensors(('%s/%s.safetensors'):format(folder, name))
        local run = require('nnscaler.runtime.' .. engine).new(Llama(cases[name]):to 'float64',
          { seed = 0 })
        local count = 0
        for _, p in ipairs(run.parameters) do
          stored:copy_to('w/' .. p.name, p.data)
          count = count + 1
        end
        assert.equal(#stored:names(), 3 + 2 * count)
        local sample = { x = stored:read 'x', y = stored:read 'y' }
        local result = run:train_step({ sample }, { step = 0, seed = 0 })
        assert.is_true(math.abs(result.loss / stored:read('loss'):item() - 1) <= 1e-13)
        for _, p in ipairs(run.parameters) do
          local want = stored:read('g/' .. p.name)
          local d = (run:grad(p.name) / result.weight - want):norm():item() / want:norm():item()
          assert.is_true(d <= 1e-12, ('%s differs by %.3g'):format(p.name, d))
        end
      end)
    end
  end

  it('refuses sizes that do not fit', function()
    local function refused(change, message)
      local a = { vocab = 11, layers = 1, heads = 4, width = 16, hidden = 8, block = 4 }
      for key, value in pairs(change) do a[key] = value end
      assert.error_matches(function() Llama(a) end, message)
    end
    refused({ kv_heads = 3 }, '3 key and value heads do not divide 4 query heads')
    refused({ heads = 3 }, '3 heads do not divide width 16')
    refused({ head_dim = 3 }, 'head_dim = 3; expected an even number')
    local function scaling(change, message)
      local s = { type = 'longrope', original = 2, short_factor = { 1, 1 }, long_factor = { 1, 2 } }
      for key, value in pairs(change) do s[key] = value or nil end
      refused({ rope_scaling = s }, message)
    end
    refused({ rope_scaling = 3 }, 'rope_scaling = 3; expected a table with a type')
    scaling({ type = 'yarn' }, "rope_scaling.type = 'yarn'; expected")
    scaling({ original = 0 }, 'rope_scaling.original = 0; expected a number above 0')
    scaling({ long_factor = false }, 'long_factor has no list; expected 2 numbers, half of')
    scaling({ short_factor = { 1 } }, 'rope_scaling.short_factor has 1 numbers; expected 2 numbers')
    scaling({ short_factor = { 1, 0 } }, 'rope_scaling.short_factor%[2%] = 0; expected')
    scaling({ attention_factor = -1 }, 'rope_scaling.attention_factor = %-1; expected')
    scaling({ type = 'linear' }, 'rope_scaling.factor = nil; expected')
    scaling({ type = 'llama3', factor = 2, low_freq_factor = 4, high_freq_factor = 4 },
      'rope_scaling.high_freq_factor = 4; expected more than low_freq_factor = 4')
  end)
end)
