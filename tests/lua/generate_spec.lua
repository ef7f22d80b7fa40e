-- Sampling with kept keys and values: the logits, and so the tokens, of reading the whole text for
-- each token.
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local generate = require 'nnscaler.commands.generate'
local nn = require 'nnscaler.nn'

local sizes = { vocab = 11, layers = 2, heads = 4, width = 16, block = 12 }
local function with(more)
  local all = {}
  for _, t in ipairs { sizes, more } do
    for key, value in pairs(t) do all[key] = value end
  end
  return all
end

-- Divisors that differ between short and long texts, so that keys of one kind serve no other.
local longrope = { type = 'longrope', original = 6, short_factor = { 1, 1 },
  long_factor = { 2, 3 } }
local models = {
  gpt = function() return GPT(sizes) end,
  gpt_with_biases = function() return GPT(with { bias = true, dropout = 0.5 }) end,
  llama = function() return Llama(with { hidden = 24 }) end,
  llama_with_fewer_key_heads = function() return Llama(with { hidden = 24, kv_heads = 2 }) end,
  llama_with_longrope = function() return Llama(with { hidden = 24, rope_scaling = longrope }) end,
}
local names = {}
for name in pairs(models) do names[#names + 1] = name end
table.sort(names)

local function made(name) return models[name]():to('float64'):materialize(3):eval() end

local function ids(from, to)
  local list = {}
  for i = from, to do list[#list + 1] = (i * i + 3 * i) % sizes.vocab end
  return T.tensor({ list }, { dtype = 'int64' })
end

local function whole(model, last) return select(2, model(ids(1, last))) end

local function close(want, got)
  assert.same(want.shape, got.shape)
  local most = (want - got):abs():max():item()
  assert.is_true(most <= 1e-12 * want:abs():max():item(), most)
end

describe('a cache gives the logits of the whole text', function()
  for _, name in ipairs(names) do
    it(name, function()
      local model = made(name)
      T.no_grad(function()
        for _, parts in ipairs { { 1, 1, 1, 1 }, { 5, 1 }, { 2, 3, 1 }, { 6 } } do
          local cache, last = model:new_cache(6), 0
          for _, time in ipairs(parts) do
            local _, got = model { x = ids(last + 1, last + time), cache = cache }
            last = last + time
            close(whole(model, last):narrow(1, last - time, time), got)
          end
          assert.equal(last, cache.length)
        end
      end)
    end)
  end

  it('with room that grows', function()
    local model = GPT(with { block = 200 }):to('float64'):materialize(3):eval()
    T.no_grad(function()
      local cache = model:new_cache(1)
      model { x = ids(1, 63), cache = cache }
      for last = 64, 70 do
        local _, got = model { x = ids(last, last), cache = cache }
        close(whole(model, last):narrow(1, last - 1, 1), got)
      end
      local _, got = model { x = ids(71, 190), cache = cache }
      close(whole(model, 190):narrow(1, 70, 120), got)
    end)
  end)

  it('of several texts at a time', function()
    local model = made 'llama_with_fewer_key_heads'
    local x = T.randint(0, sizes.vocab, { 3, 8 }, { generator = T.generator(1) })
    T.no_grad(function()
      local cache = model:new_cache(8)
      model { x = x:narrow(1, 0, 5), cache = cache }
      local _, got = model { x = x:narrow(1, 5, 3), cache = cache }
      local _, want = model(x)
      close(want:narrow(1, 5, 3), got)
    end)
  end)
end)

describe('a cache', function()
  it('holds as many tokens as one kind of positions reaches', function()
    assert.equal(12, made('gpt'):new_cache(1).capacity)
    assert.equal(6, made('llama_with_longrope'):new_cache(6).capacity)
    assert.equal(12, made('llama_with_longrope'):new_cache(7).capacity)
    assert.is_nil(made('gpt'):new_cache(13))
  end)

  it('refuses more', function()
    local model = made 'llama_with_longrope'
    local cache = model:new_cache(1)
    model { x = ids(1, 4), cache = cache }
    assert.error_matches(function() model { x = ids(5, 7), cache = cache } end, '[models.cache] 3 '
      .. 'tokens behind 4; expected at most 6 in all', nil, true)
    model { x = ids(5, 6), cache = cache }
    assert.equal(6, cache.length)
  end)
end)

describe('generate', function()
  -- A model as others write them: forward of tokens, no cache.
  local Plain = nn.class 'Plain'
  function Plain:init(inner) self.inner, self.block, self.calls = inner, inner.block, {} end
  function Plain:forward(x)
    self.calls[#self.calls + 1] = x.shape[2]
    return self.inner(x)
  end

  local function text(model, options)
    local parts = {}
    generate.sample(model, nil, { prompt = '1 2 3', tokens = 20, temperature = 0.8, seed = 5,
      top_k = options.top_k }, function(part) parts[#parts + 1] = part end)
    return table.concat(parts)
  end

  for _, name in ipairs(names) do
    it('samples the same tokens with and without a cache, beyond the window too: ' .. name,
      function()
        local model = made(name)
        local plain = Plain(model):eval()
        assert.equal(text(plain, {}), text(model, {}))
        assert.equal(text(plain, { top_k = 3 }), text(model, { top_k = 3 }))
        assert.same({ 3, 4, 5 }, { unpack(plain.calls, 1, 3) })
        assert.equal(12, plain.calls[20])
      end)
  end

  it('reads one token at a time within the window', function()
    local model, calls = made 'gpt', {}
    local wte = model.transformer.wte
    local forward = wte.forward
    function wte.forward(self, index)
      calls[#calls + 1] = index.shape[2]
      return forward(self, index)
    end
    text(model, {})
    assert.same({ 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 12, 12 }, { unpack(calls, 1, 12) })
  end)

  it('says what forward has to return', function()
    local Odd = nn.class 'Odd'
    function Odd:forward(x) return x end
    assert.error_matches(function() text(Odd(), {}) end, '[generate.forward] forward without '
      .. 'targets returned a nil second; expected the logits', nil, true)
  end)
end)
