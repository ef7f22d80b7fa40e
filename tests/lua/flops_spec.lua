--- Floating point operations of whole models beside counts by hand, to the integer: what
--- utilisation (mfu) goes by. Causal attention counts whole, as its products run over all pairs.
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local trace = require 'nnscaler.trace'

-- Those of matrix products, and of all else, of one forward of a model of text.
local function count(model, batch, time)
  local function ids() return T.empty({ batch, time }, { dtype = 'int64', device = 'meta' }) end
  local graph = trace(model, { { x = ids(), y = ids() } }, { training = true })
  local products, rest = 0, 0
  for i, node in ipairs(graph:nodes()) do
    local flops = graph:flops(i - 1) or 0
    if node.op:find 'linear' or node.op:find 'attention' or node.op:find 'experts' then
      products = products + flops
    else
      rest = rest + flops
    end
  end
  return products, rest
end

describe('operations of a forward', function()
  it('of GPT-2 are those that one counts by hand', function()
    local width, layers, vocab, time, batch = 768, 12, 50257, 1024, 2
    local products, rest = count(GPT { vocab = vocab, layers = layers, heads = 12, width = width,
      block = time, bias = true }, batch, time)
    -- Query, key, value and output of attention; up and down of eight times the area.
    local weights = layers * (4 + 8) * width * width + vocab * width
    local scores = layers * 2 * time * time * width -- all pairs, times keys and times values
    assert.equal(2 * batch * (time * weights + scores), products)
    assert.is_true(rest < 0.01 * products)
  end)

  it('of Llama 3 8B, whose heads share keys, are those that one counts by hand', function()
    local c, batch = Llama.configs['llama3-8b'], 1
    local products, rest = count(Llama(c), batch, c.block)
    local keys = c.width * c.kv_heads / c.heads
    local weights = c.layers * (2 * c.width * c.width + 2 * c.width * keys + 3 * c.width * c.hidden)
      + c.vocab * c.width
    local scores = c.layers * 2 * c.block * c.block * c.width
    assert.equal(2 * batch * (c.block * weights + scores), products)
    assert.is_true(rest < 0.01 * products)
  end)

  it('of experts are those of the two that a token has', function()
    local width, hidden, vocab, time, batch, experts = 64, 96, 100, 32, 3, 8
    local products = count(Llama { vocab = vocab, layers = 2, heads = 4, kv_heads = 2,
      width = width, hidden = hidden, block = time, experts = { count = experts, chosen = 2 } },
      batch, time)
    local weights = 2 * (2 * width * width + 2 * width * width / 2 + experts * width
      + 2 * 3 * width * hidden) + vocab * width
    local scores = 2 * 2 * time * time * width
    assert.equal(2 * batch * (time * weights + scores), products)
  end)
end)
