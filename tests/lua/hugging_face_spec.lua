-- Model folders of the transformers library: what our models make of them, and what is written
-- back. tests/lua/hugging_face holds models and logits of that library
-- (tests/equivalence/make_hugging_face.py).
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local export = require 'nnscaler.hugging_face.export'
local nnscaler = require 'nnscaler'
local weights_of = require 'nnscaler.checkpoint.weights'

local given = 'tests/lua/hugging_face/'
local dir = os.tmpname() .. '.d'
base.make_folder(dir)
teardown(function() os.execute("rm -rf '" .. dir .. "'") end)

local function load(path, options)
  return nnscaler.from_pretrained(path, options):materialize(0):eval()
end

local function logits_of(model, ids)
  return T.no_grad(function() return select(2, model(ids)) end)
end

-- The folder of a case with some values of config.json changed; `false` takes one away.
local function changed(name, values)
  local folder = ('%s/%s-%s'):format(dir, name, base.hash(base.json_encode(values)):sub(1, 8))
  os.execute(("cp -r '%s' '%s'"):format(given .. name, folder))
  local config = base.json_decode(base.file_read(folder .. '/config.json'))
  for key, value in pairs(values) do config[key] = value or nil end
  base.file_write(folder .. '/config.json', base.json_encode(config))
  return folder
end

local function bits(x) return x:view('int16') end

local function same_bits(a, b)
  if a.dtype ~= b.dtype then return false end
  return a.dtype == 'bfloat16' and T.equal(bits(a), bits(b)) or T.equal(a, b)
end

for _, name in ipairs { 'llama', 'llama31', 'longrope', 'qwen2', 'mixtral', 'gpt2', 'bert' } do
  describe('a folder with ' .. name, function()
    local expected = C.read_safetensors(given .. name .. '/expected_logits.bin')

    it('gives the logits of the transformers library', function()
      -- Theirs are of float32, up to 9e-6 off the exact ones; ours of float64 add nothing to it.
      local logits = logits_of(load(given .. name, { dtype = 'float64' }), expected:read 'ids')
      local most = (logits - expected:read 'logits'):abs():max():item()
      assert.is_true(most <= 1e-5, ('the logits differ by %g'):format(most))
      assert.is_true(expected:read('logits'):abs():max():item() > 0.5)
    end)

    it('is written back bit for bit', function()
      local model, folder = load(given .. name), dir .. '/back-' .. name
      local by_name = {}
      for _, entry in ipairs(model:named_parameters()) do by_name[entry.name] = entry.param.data end
      export.write(folder, { model = model, shard_bytes = name == 'llama' and 8000 or nil,
        read = function(key) return by_name[key]:detach() end })
      local before, after = weights_of.open(given .. name), weights_of.open(folder)
      local function list(source)
        table.sort(source.names)
        return table.concat(source.names, ' ')
      end
      assert.equal(list(before), list(after))
      for _, key in ipairs(before.names) do
        assert.is_true(same_bits(before:read(key), after:read(key)), key)
      end
      local again = logits_of(load(folder, { dtype = 'float64' }), expected:read 'ids')
      assert.is_true((again - expected:read 'logits'):abs():max():item() <= 1e-5)
      assert.equal(base.file_exists(folder .. '/model.safetensors.index.json') ~= nil,
        name == 'llama')
    end)
  end)
end

describe('from_pretrained', function()
  it('keeps the dtype of the file, and converts where it is asked to', function()
    assert.equal('bfloat16', load(given .. 'llama31').lm_head.weight.dtype)
    assert.equal('float64', load(given .. 'llama31', { dtype = 'float64' }).lm_head.weight.dtype)
  end)

  it('takes a model with a window for texts that are no longer', function()
    local folder = changed('llama', { model_type = 'mistral', sliding_window = 8 })
    local expected = C.read_safetensors(given .. 'llama/expected_logits.bin')
    local logits = logits_of(load(folder, { block = 8 }), expected:read('ids'):narrow(1, 0, 8))
    local first = expected:read('logits'):narrow(1, 0, 8)
    assert.is_true((logits - first):abs():max():item() <= 1e-5)
  end)

  it('turns texts within the original length as LongRoPE does short ones', function()
    local expected = C.read_safetensors(given .. 'longrope/expected_logits.bin')
    local ids = expected:read('ids'):narrow(1, 0, 12)
    local short = expected:read 'short_logits'
    for _, block in ipairs { 32, 12 } do -- with the table of long texts, and without it
      local model = load(given .. 'longrope', { dtype = 'float32', block = block })
      assert.is_true((logits_of(model, ids) - short):abs():max():item() <= 1e-5)
    end
    local long = expected:read('logits'):narrow(1, 0, 12)
    assert.is_true((long - short):abs():max():item() > 1e-2)
  end)

  it('knows kinds of tokens and padding of BERT', function()
    local expected = C.read_safetensors(given .. 'bert/expected_logits.bin')
    local model = load(given .. 'bert')
    local logits = T.no_grad(function()
      return select(2, model { x = expected:read 'ids', types = expected:read 'types',
        mask = expected:read 'mask' })
    end)
    local most = (logits - expected:read 'padded_logits'):abs():max():item()
    assert.is_true(most <= 1e-5, ('the logits differ by %g'):format(most))
    local without = expected:read 'padded_logits' - expected:read 'logits'
    assert.is_true(without:abs():max():item() > 0.1)
  end)

  it('reads a BERT with other heads, and the names of older files', function()
    local folder = changed('bert', { hidden_dropout_prob = 0.1 })
    local source, list = C.read_safetensors(given .. 'bert/model.safetensors'), {}
    for _, name in ipairs(source:names()) do
      local old = name:gsub('LayerNorm%.weight$', 'LayerNorm.gamma')
        :gsub('LayerNorm%.bias$', 'LayerNorm.beta')
      list[#list + 1] = { old, source:read(name) }
    end
    list[#list + 1] = { 'bert.pooler.dense.weight', T.zeros { 16, 16 } }
    list[#list + 1] = { 'cls.seq_relationship.bias', T.zeros { 2 } }
    C.write_safetensors(folder .. '/model.safetensors', list, { format = 'pt' })
    local expected = C.read_safetensors(given .. 'bert/expected_logits.bin')
    local logits = logits_of(load(folder), expected:read 'ids')
    assert.is_true((logits - expected:read 'logits'):abs():max():item() <= 1e-5)
  end)

  it('refuses a dtype that is none of weights', function()
    assert.error_matches(function()
      nnscaler.from_pretrained(given .. 'llama', { dtype = 'int8' })
    end, "dtype = 'int8'; expected float32, float64, bfloat16, float16")
  end)

  it('ties weights once', function()
    local model = load(given .. 'llama31')
    assert.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert.same({ { alias = 'lm_head.weight', name = 'model.embed_tokens.weight' } },
      model:tied_names())
  end)

  it('reads no more of a weight than the part that is asked for', function()
    local whole = load(given .. 'gpt2')
    local lazy = nnscaler.from_pretrained(given .. 'gpt2')
    for _, case in ipairs { -- query, key and value; transposed; neither
      { 'transformer.h.1.attn.c_attn.weight', { 0, 4, 8 }, { 3, 8, 5 } },
      { 'transformer.h.1.attn.c_attn.weight', { 1, 0, 0 }, { 2, 16, 16 } },
      { 'transformer.h.1.attn.c_attn.bias', { 1, 4 }, { 1, 6 } },
      { 'transformer.h.0.mlp.c_fc.weight', { 32, 0 }, { 16, 16 } },
      { 'transformer.h.0.mlp.c_proj.weight', { 0, 32 }, { 16, 32 } },
      { 'transformer.wte.weight', { 20, 0 }, { 21, 16 } },
    } do
      local name, start, shape = unpack(case)
      local function find(model)
        for _, entry in ipairs(model:named_parameters()) do
          if entry.name == name then return entry.param end
        end
      end
      local expected = find(whole).data:detach()
      for d, first in ipairs(start) do expected = expected:narrow(d - 1, first, shape[d]) end
      assert.is_true(T.equal(expected, find(lazy):draw_part(0, start, shape)), name)
    end
  end)

  it('reads no more of stacked experts than the part that is asked for', function()
    local whole, lazy = load(given .. 'mixtral'), nnscaler.from_pretrained(given .. 'mixtral')
    local function layer(model) return model.model.layers[2].block_sparse_moe end
    for _, case in ipairs { -- some experts; a slice of each; neither
      { 'w1', { 1, 0, 0 }, { 2, 24, 16 } }, { 'w2', { 0, 0, 12 }, { 4, 16, 12 } },
      { 'w3', { 0, 0, 0 }, { 4, 24, 16 } },
    } do
      local name, start, shape = unpack(case)
      local expected = layer(whole)[name].data:detach()
      for d, first in ipairs(start) do expected = expected:narrow(d - 1, first, shape[d]) end
      assert.is_true(T.equal(expected, layer(lazy)[name]:draw_part(0, start, shape)), name)
    end
  end)

  it('refuses experts of which one is missing, or unlike the others', function()
    local function with(change)
      local folder = changed('mixtral', { initializer_range = change and 0.03 or 0.04 })
      local source, list = C.read_safetensors(given .. 'mixtral/model.safetensors'), {}
      for _, name in ipairs(source:names()) do
        local x = source:read(name)
        if name:find 'layers.1.block_sparse_moe.experts.2.w1.weight' then
          x = change and change(x)
        end
        if x then list[#list + 1] = { name, x } end
      end
      C.write_safetensors(folder .. '/model.safetensors', list, { format = 'pt' })
      return function() nnscaler.from_pretrained(folder) end
    end
    assert.error_matches(with(), 'has 3 pieces of model.layers.1.block_sparse_moe.w1, of which '
      .. 'number 2 is missing')
    assert.error_matches(with(function(x) return x:narrow(0, 0, 8):contiguous() end),
      'has 4 pieces of model.layers.1.block_sparse_moe.w1, of which number 2 has another shape')
  end)

  it('refuses what is no folder, and says how to get a model of the hub', function()
    local ok, err = pcall(nnscaler.from_pretrained, 'meta-llama/Llama-3.1-8B')
    assert.is_false(ok)
    assert.matches("'meta%-llama/Llama%-3.1%-8B' is no folder with a config.json", err.message)
    assert.matches('hf download meta%-llama/Llama%-3.1%-8B %-%-local%-dir FOLDER', err.hint)
    assert.error_matches(function() nnscaler.from_pretrained(dir) end, 'no folder with a config')
    assert.error_matches(function() nnscaler.from_pretrained() end,
      'the path is a nil; expected the name of a folder')
  end)

  it('refuses a configuration that our models do not compute, by its name', function()
    local function refused(name, values)
      local ok, err = pcall(nnscaler.from_pretrained, changed(name, values))
      assert.is_false(ok)
      return err.message
    end
    assert.matches("model_type is t5; expected llama, mistral, mixtral, qwen2, gpt2, bert",
      refused('llama', { model_type = 't5' }))
    assert.matches('hidden_act is gelu; expected silu', refused('llama', { hidden_act = 'gelu' }))
    assert.matches('sliding_window is 8; expected null, or no shorter than the block of 32',
      refused('llama', { model_type = 'mistral', sliding_window = 8 }))
    assert.matches('rope_parameters is {.*}; expected all of a head to be turned',
      refused('llama', { rope_parameters = { partial_rotary_factor = 0.5 } }))
    assert.matches('rope_parameters is {.*yarn.*}; expected rope_type default, linear, llama3 or '
      .. 'longrope', refused('llama', { rope_parameters = { rope_type = 'yarn' } }))
    assert.matches('vocab_size is 2.5; expected an integer', refused('llama', { vocab_size = 2.5 }))
    assert.matches('rms_norm_eps is x; expected a number', refused('llama', { rms_norm_eps = 'x' }))
    assert.matches('tie_word_embeddings is 3; expected true or false',
      refused('llama', { tie_word_embeddings = 3 }))
    assert.matches('attn_pdrop is 0.5; expected one share', refused('gpt2', { attn_pdrop = 0.5 }))
    assert.matches('activation_function is relu; expected gelu_new',
      refused('gpt2', { activation_function = 'relu' }))
    assert.matches('hidden_act is relu; expected gelu, gelu_new', refused('bert',
      { hidden_act = 'relu' }))
    assert.matches('attention_probs_dropout_prob is 0.5; expected 0.1', refused('bert',
      { attention_probs_dropout_prob = 0.5 }))
    assert.matches('hidden_dropout_prob is 2; expected a share', refused('bert',
      { hidden_dropout_prob = 2 }))
    assert.matches('is_decoder is true; expected false', refused('bert', { is_decoder = true }))
    assert.matches('router_jitter_noise is 0.1; expected 0', refused('mixtral',
      { router_jitter_noise = 0.1 }))
    assert.matches('router_aux_loss_coef is %-1; expected a number', refused('mixtral',
      { router_aux_loss_coef = -1 }))
    base.file_write(dir .. '/config.json', '{ "model_type": ')
    assert.error_matches(function() nnscaler.from_pretrained(dir) end,
      'is not the configuration of a model: ')
    os.remove(dir .. '/config.json')
  end)

  it('tells the first differing names of weights of another architecture', function()
    local folder = changed('llama', { num_hidden_layers = 3, vocab_size = 50 })
    local ok, err = pcall(nnscaler.from_pretrained, folder)
    assert.is_false(ok)
    assert.matches("does not fit the model; nothing was changed:\n"
      .. '  wrong shape: model.embed_tokens.weight is float32%[41, 16%], the model has '
      .. 'float32%[50, 16%]\n  missing tensor: model.layers.2.input_layernorm.weight', err.message)
    ok, err = pcall(nnscaler.from_pretrained, changed('qwen2', { model_type = 'llama' }))
    assert.is_false(ok)
    assert.matches('extra tensor: model.layers.0.self_attn.k_proj.bias', err.message)
  end)
end)

describe('export', function()
  it('refuses what it cannot write', function()
    local GPT, MLP = require 'nnscaler.models.gpt', require 'nnscaler.models.mlp'
    local function write(model, options)
      options = options or {}
      return function()
        export.write(options.folder or dir .. '/new', { model = model, dtype = options.dtype,
          read = function() end })
      end
    end
    local plain = GPT { vocab = 8, layers = 1, heads = 1, width = 4, block = 4 }
    assert.error_matches(write(MLP { sizes = { 2, 2 } }),
      "'MLP' has no form in the transformers library")
    assert.error_matches(write(plain), 'cannot be written; expected bias = true')
    local gpt = GPT { vocab = 8, layers = 1, heads = 1, width = 4, block = 4, bias = true }
    local Llama = require 'nnscaler.models.llama'
    local function mixtral(experts)
      return Llama { vocab = 8, layers = 1, heads = 1, width = 4, hidden = 4, block = 4,
        experts = experts }
    end
    assert.error_matches(write(mixtral { count = 2, capacity = 1 }),
      'cannot be written; expected experts with no settings but count, chosen and balance')
    assert.error_matches(write(gpt, { dtype = 'int8' }), "dtype 'int8'; expected float64")
    assert.error_matches(write(gpt, { folder = given .. 'gpt2' }),
      'is there already; expected a folder to make')
  end)
end)
