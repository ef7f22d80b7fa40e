--- The megatron policy on traced models: what it cuts, and what it says where it cannot.
local DeepSeek = require 'nnscaler.models.deepseek'
local GPT = require 'nnscaler.models.gpt'
local Llama = require 'nnscaler.models.llama'
local T = require 'nnscaler.tensor'
local nn = require 'nnscaler.nn'
local policies = require 'nnscaler.policies'
local trace = require 'nnscaler.trace'
local message = require 'tests.lua.support.message'

local function graph_of(options)
  local model = Llama { vocab = options.vocab or 16, layers = 2, heads = 4,
    kv_heads = options.kv_heads or 2, width = 8, hidden = 12, block = 8, tied = options.tied }
  local x = T.zeros({ 2, options.time or 8 }, { dtype = 'int64' })
  return (trace(model, { x, x }, { training = true }))
end

local function run(graph, n, config)
  return policies.run(graph, 'megatron', { plan_ngpus = n, runtime_ngpus = n,
    pas_config = config or {}, micro_batches = 2 })
end

-- Lines of a plan's text that contain all of the texts.
local function lines(plan, ...)
  local n = 0
  for line in plan:text():gmatch '[^\n]+' do
    local all = true
    for _, what in ipairs { ... } do all = all and line:find(what, 1, true) ~= nil end
    if all then n = n + 1 end
  end
  return n
end

describe('megatron', function()
  it('cuts linear layers by columns, then rows, and the vocabulary', function()
    local plan = run(graph_of {}, 2)
    for _, name in ipairs { 'q_proj', 'k_proj', 'v_proj', 'gate_proj', 'up_proj' } do
      assert.equal(2, lines(plan, name .. ' aten::linear', 'input 1 dim 0 into 2'), name)
    end
    for _, name in ipairs { 'o_proj', 'down_proj' } do
      assert.equal(2, lines(plan, name .. ' aten::linear', 'input 0 dim 2 into 2'), name)
    end
    assert.equal(1, lines(plan, 'lm_head aten::linear', 'input 1 dim 0 into 2'))
    assert.equal(1, lines(plan, 'aten::embedding', 'input 0 dim 0 into 2'))
    assert.equal(1, lines(plan, 'aten::cross_entropy_loss', 'input 0 dim 1 into 2'))
    assert.equal(0, lines(plan, 'aten::rms_norm', 'into 2'))
  end)

  it('cuts what lies between along the sequence when asked to', function()
    local plan = run(graph_of {}, 2, { sequence_parallel = true })
    assert.equal(5, lines(plan, 'aten::rms_norm', 'input 0 dim 1 into 2'))
    assert.matches('sequence_parallel: dimension 1 of %[2, 7, 8%] is not divisible by 2',
      message(run, graph_of { time = 7 }, 2, { sequence_parallel = true }))
  end)

  it('leaves the vocabulary whole when asked to, or where it does not divide', function()
    for _, plan in ipairs { run(graph_of {}, 2, { vocab_parallel = false }),
      run(graph_of { vocab = 15, tied = true }, 2) } do
      assert.equal(0, lines(plan, 'lm_head', 'into 2'))
      assert.equal(0, lines(plan, 'aten::embedding', 'into 2'))
      assert.equal(2, lines(plan, 'o_proj', 'into 2'))
    end
  end)

  it('cuts whole heads of query, key and value that one product makes', function()
    local function gpt(heads)
      local model = GPT { vocab = 16, layers = 2, heads = heads, width = 8, block = 8, bias = true }
      local x = T.zeros({ 2, 8 }, { dtype = 'int64' })
      return (trace(model, { x, x }, { training = true }))
    end
    local plan = run(gpt(4), 2)
    for _, name in ipairs { 'attn.c_attn nnscaler::fused_linear', 'attn aten::scaled_dot_product',
      'attn.c_proj aten::linear', 'mlp.c_fc aten::linear', 'mlp.c_proj aten::linear' } do
      assert.equal(2, lines(plan, name, 'into 2'), name)
    end
    assert.equal(2, lines(plan, 'fused_linear', 'input 1 dim 1 into 2'))
    plan = run(gpt(2), 4)
    assert.equal(2, lines(plan, 'fused_linear', 'input 1 dim 1 into 2, replicate 2'))
    assert.equal(2, lines(plan, 'mlp.c_fc', 'input 1 dim 0 into 2, input 1 dim 0 into 2'))
  end)

  it('cuts layers of transformers by heads', function()
    local Net = nn.class 'Net'
    function Net:init()
      self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4,
        { dim_feedforward = 12 }), 2)
      self.decoder = nn.TransformerDecoderLayer(8, 4, { dim_feedforward = 12 })
    end
    function Net:forward(x, y)
      return self.decoder(y, self.encoder(x), { tgt_is_causal = true }):square():mean()
    end
    local plan = run((trace(Net {}, { T.zeros { 5, 2, 8 }, T.zeros { 3, 2, 8 } },
      { training = true })), 2)
    assert.equal(3, lines(plan, 'self_attn aten::scaled_dot_product_attention', 'dim 1 into 2'))
    assert.equal(3, lines(plan, 'fused_linear', 'input 1 dim 1 into 2'))
    assert.equal(3, lines(plan, 'self_attn.out_proj aten::linear', 'input 0 dim 2 into 2'))
    assert.equal(3, lines(plan, 'linear2 aten::linear', 'input 0 dim 2 into 2'))
  end)

  it('gives each head of keys to several devices where there are fewer heads', function()
    local plan = run(graph_of {}, 4) -- 4 heads of queries, 2 of keys
    for name, cut in pairs { q_proj = 'input 1 dim 0 into 2', down_proj = 'input 0 dim 2 into 2',
      scaled_dot_product = 'input 0 dim 1 into 2' } do
      assert.equal(2, lines(plan, name, cut .. ', ' .. cut), name)
    end
    assert.equal(2, lines(plan, 'k_proj', 'into 2, replicate 2'))
  end)

  it('leaves attention whole whose heads do not divide', function()
    local plan = run(graph_of {}, 3)
    assert.equal(0, lines(plan, 'q_proj', 'into 3'))
    assert.equal(2, lines(plan, 'down_proj', 'into 3'))
  end)

  it('cuts the queries alone where all share one head of keys', function()
    local plan = run(graph_of { kv_heads = 1 }, 2)
    assert.equal(0, lines(plan, 'k_proj', 'into 2'))
    for _, name in ipairs { 'q_proj', 'o_proj', 'down_proj' } do
      assert.equal(2, lines(plan, name .. ' aten::linear', 'into 2'), name)
    end
  end)

  it('gives experts to devices, or cuts their inner width', function()
    local function graph(count)
      local model = Llama { vocab = 16, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 12,
        block = 8, experts = { count = count } }
      local x = T.zeros({ 2, 8 }, { dtype = 'int64' })
      return (trace(model, { x, x }, { training = true }))
    end
    assert.equal(2, lines(run(graph(4), 2), 'nnscaler::experts', 'input 3 dim 0 into 2'))
    assert.equal(2, lines(run(graph(3), 2), 'nnscaler::experts', 'input 3 dim 1 into 2'))
    assert.equal(2, lines(run(graph(4), 2, { expert_parallel = false }), 'nnscaler::experts',
      'input 3 dim 1 into 2'))
    -- The router works on its part of the text.
    assert.equal(2, lines(run(graph(4), 2, { sequence_parallel = true }), 'aten::topk',
      'input 0 dim 1 into 2'))
  end)

  it('cuts heads that share the rotary part of their keys', function()
    local model = DeepSeek { vocab = 16, layers = 2, heads = 4, width = 8, hidden = 12, block = 8,
      head_dim = 4, rope_dim = 2, value_dim = 6, kv_rank = 6, expert_hidden = 8, shared = 1,
      experts = { count = 4 } }
    local x = T.zeros({ 2, 8 }, { dtype = 'int64' })
    local plan = run((trace(model, { x, x }, { training = true })), 2)
    for _, name in ipairs { 'q_proj', 'kv_b_proj' } do
      assert.equal(2, lines(plan, name .. ' aten::linear', 'input 1 dim 0 into 2'), name)
    end
    assert.equal(2, lines(plan, 'o_proj aten::linear', 'input 0 dim 2 into 2'))
    assert.equal(2, lines(plan, 'self_attn aten::expand', 'input 0 dim 1 into 2'))
    assert.equal(0, lines(plan, 'kv_a_proj_with_mqa', 'into 2'))
    assert.equal(1, lines(plan, 'nnscaler::experts', 'into 2')) -- the first layer has none
  end)

  it('cuts texts over the devices that share them', function()
    local plan = run(graph_of {}, 2, { context_parallel = 2 })
    assert.equal(2, lines(plan, 'scaled_dot_product', 'input 0 dim 2 into 2'))
    assert.equal(5, lines(plan, 'aten::rms_norm', 'input 0 dim 1 into 2'))
    plan = run(graph_of {}, 4, { context_parallel = 2 })
    assert.equal(2, lines(plan, 'scaled_dot_product', 'dim 2 into 2', 'dim 1 into 2'))
    plan = run(graph_of {}, 2, { context_parallel = 2, context_attention = 'all_to_all' })
    assert.equal(2, lines(plan, 'scaled_dot_product', 'input 0 dim 1 into 2'))
    local function refused(graph, n, config) return message(run, graph, n, config) end
    assert.matches('context_parallel=3 on 4 devices of a stage; expected a divisor',
      refused(graph_of {}, 4, { context_parallel = 3 }))
    assert.matches("context_attention is 'rings'; expected ring or all_to_all",
      refused(graph_of {}, 2, { context_parallel = 2, context_attention = 'rings' }))
    assert.matches('the heads of model.layers.0.self_attn cannot be shared out over 4 devices',
      refused(graph_of {}, 4, { context_parallel = 4, context_attention = 'all_to_all' }))
    assert.matches('context_parallel=4: texts of 3 tokens',
      refused(graph_of { time = 3 }, 4, { context_parallel = 4 }))
    local One = nn.class 'One'
    function One:init() self.fc = nn.Linear(4, 4) end
    function One:forward(x) return self.fc(x):sum() end
    assert.matches('context_parallel=2: the model has no causal attention of a text to itself',
      refused((trace(One {}, { T.zeros { 2, 4 } }, { training = true })), 2,
        { context_parallel = 2 }))
    local Late = nn.class 'Late'
    function Late:init() self.attention = nn.MultiHeadAttention(4, 2) end
    function Late:forward(x)
      return self.attention(x:view { 2, 3, 2, 4 }:flatten(1, 2), nil, { causal = true }):sum()
    end
    assert.matches('attention stays whole, since what it reads cannot be cut',
      refused((trace(Late {}, { T.zeros { 2, 24 } }, { training = true })), 2,
        { context_parallel = 2 }))
  end)

  it('begins stages where blocks begin', function()
    local plan = run(graph_of {}, 4, { pipeline_nstages = 2 })
    assert.is_true(lines(plan, 'layers.0', 'on 0,1') > 0)
    assert.is_true(lines(plan, 'layers.1', 'on 2,3') > 0)
    assert.equal(0, lines(plan, 'layers.0', 'on 2,3'))
    assert.matches('3 stages on plan_ngpus = 4 devices',
      message(run, graph_of {}, 4, { pipeline_nstages = 3 }))
  end)

  it('says so when there is nothing to cut', function()
    local One = nn.class 'One'
    function One:init() self.fc = nn.Linear(4, 4) end
    function One:forward(x) return self.fc(x):sum() end
    local graph = trace(One {}, { T.zeros { 2, 4 } }, { training = true })
    assert.matches('no pair of linear layers can be cut by columns and rows into 2 parts',
      message(run, graph, 2))
  end)
end)
