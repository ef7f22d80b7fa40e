--- Faults that are planted into generated programs of plans, what `nnscaler diff` must say of each,
--- and pairs of right plans. `quick` are those of tests/cli; all of them run in tests/long.
local base = require 'nnscaler._C.base'
local differences = require 'tests.cli.support.differences'
local shell = require 'tests.cli.support.shell'

local M = {}

M.pairs = {
  quick = { { 'pp', 'fsdp' }, { 'tp', 'data' } },
  all = { { 'one', 'dp' }, { 'one', 'hybrid' }, { 'one', 'recompute' }, { 'dp', 'zero1' },
    { 'zero2', 'megatron' }, { 'interleaved', 'dp' }, { 'data', 'pp' }, { 'fsdp', 'hybrid' },
    { 'megatron', 'interleaved' }, { 'one', 'megatron' }, { 'pp', 'fsdp' }, { 'tp', 'data' } },
}

-- A report of an operator.
local function names(phase, op, module, source)
  return { phase .. ': step 1', '\n  operator   ' .. op .. '\n',
    '\n  module     ' .. module .. '\n', '\n  source     %S-' .. source,
    '\nparts:\n  A  ⟨', '\n  B  ⟨' }
end
local forward, backward = 'Forward differs first', 'Backward differs first'

-- A report of a parameter.
local function state(phase, name)
  return { phase .. ': step 1', '\n  state      ' .. name .. '\n' }
end
local gradients = 'Gradients differ after they were summed over micro%-batches and ranks and scaled'
local weights = 'Weights differ after the update'

local kBlock, kAttention = 'transformer%.h%.0%.', 'aten::scaled_dot_product_attention'

---@class nnscaler.tests.Fault
---@field what string
---@field plan string
---@field ranks integer[] whose programs are edited
---@field from? string text that is replaced once
---@field to? string
---@field edits? string[][] several of them
---@field after? string text behind which edits are made
---@field step? integer of the report, 1 unless told
---@field quick? boolean
---@field finds string[] patterns of the report

---@type nnscaler.tests.Fault[]
M.list = {
  -- Under tensor parallelism.
  { what = 'a wrong scale in one shard', plan = 'megatron', ranks = { 1 }, quick = true,
    from = 'aten.mul_Scalar(transpose, 0.35355339059327373)',
    to = 'aten.mul_Scalar(transpose, 0.36)',
    finds = names(forward, kAttention, kBlock .. 'attn', 'gpt%.lua:35') },
  { what = 'a missing sum', plan = 'megatron', ranks = { 0, 1 }, quick = true,
    from = 'comm.all_reduce(c_proj, tp)', to = 'aten.mul_Scalar(c_proj, 1)',
    finds = names(forward, 'aten::dropout', kBlock .. 'attn%.resid_dropout', 'gpt%.lua:38') },
  { what = 'a missing sum in backward', plan = 'megatron', ranks = { 0, 1 },
    from = 'comm.all_reduce(d_ln_2, tp)', to = 'aten.mul_Scalar(d_ln_2, 1)',
    finds = names(backward, 'aten::linear', 'transformer%.h%.1%.mlp%.c_fc', 'gpt%.lua:51') },
  { what = 'swapped slices', plan = 'megatron', ranks = { 0 },
    from = 'aten.reshape(c_attn_2, {', to = 'aten.reshape(c_attn_3, {',
    finds = names(forward, 'aten::reshape', kBlock .. 'attn', 'gpt%.lua:32') },
  { what = 'another seed', plan = 'megatron', ranks = { 1 },
    from = "mlp.dropout:dropout#0', ctx.seed", to = "mlp.dropout:dropout#0', ctx.seed + 1",
    finds = names(forward, 'aten::dropout', kBlock .. 'mlp%.dropout', 'gpt%.lua:53') },
  { what = 'dropout of another slice', plan = 'megatron', ranks = { 1 },
    from = '{ 0, 1, 0, 0 }', to = '{ 0, 0, 0, 0 }',
    finds = names(forward, kAttention, kBlock .. 'attn', 'gpt%.lua:35') },
  -- Of scale units.
  { what = 'a wrong divisor of the loss', plan = 'dp', ranks = { 1 },
    from = 'aten.clamp_min(sum, 1)', to = 'aten.clamp_min(sum, 100)',
    finds = names(forward, 'aten::clamp_min', 'loss', 'language%.lua:%d+') },
  { what = 'gradients that are not summed', plan = 'dp', ranks = { 0, 1 }, quick = true,
    edits = { { 'if ctx.last then start_sums(ctx, 1) end', '' }, { 'o:sum(1, dp)', '' } },
    finds = state(gradients, 'transformer%.wte%.weight') },
  { what = 'a gradient that is not accumulated', plan = 'dp', ranks = { 0 },
    from = "accumulate(g.transformer.wpe, 'weight', d_narrow)", to = '',
    finds = state(gradients, 'transformer%.wpe%.weight') },
  { what = 'another learning rate', plan = 'dp', ranks = { 1 },
    from = 'o:update(1, lr)', to = 'o:update(1, lr * 2)',
    finds = state(weights, 'transformer%.wte%.weight') },
  -- Of a batch that is cut.
  { what = 'a loss that is not summed', plan = 'data', ranks = { 0, 1 },
    from = 'comm.all_reduce(cross_entropy_loss, tp)',
    to = 'aten.mul_Scalar(cross_entropy_loss, 1)',
    finds = names(forward, 'aten::div%.Tensor', 'loss', 'language%.lua:%d+') },
  { what = 'samples of another rank', plan = 'data', ranks = { 1 },
    from = 'aten.narrow(wte, 0, 2, 2)', to = 'aten.narrow(wte, 0, 0, 2)',
    finds = names(forward, 'aten::add%.Tensor', 'the model', 'gpt%.lua:%d+') },
  -- Of stages.
  { what = 'another epsilon in a stage', plan = 'pp', ranks = { 1 }, quick = true,
    after = '  transformer.ln_f\n', from = '1e-05', to = '1e-02',
    finds = names(forward, 'aten::layer_norm', 'transformer%.ln_f', 'gpt%.lua:%d+') },
  { what = 'another mask in backward', plan = 'pp', ranks = { 1 },
    after = 'local function backward',
    from = "'transformer.h.1.mlp.dropout:dropout#0', ctx.seed",
    to = "'transformer.h.1.mlp.dropout:dropout#0', ctx.seed + 1",
    finds = names(backward, 'aten::dropout', 'transformer%.h%.1%.mlp%.dropout', 'gpt%.lua:53') },
  { what = 'another derivative', plan = 'pp', ranks = { 0 },
    from = 'aten.gelu_backward(d_gelu, s.c_fc)',
    to = "aten.gelu_backward(d_gelu, s.c_fc, { approximate = 'tanh' })",
    finds = names(backward, 'aten::gelu', kBlock .. 'mlp%.gelu', 'gpt%.lua:51') },
  -- Of weights, gradients and slots in shards.
  -- On both ranks: a gather of what no program names is not begun ahead, on one rank as on the
  -- other.
  { what = 'a scale in the shards of a weight', plan = 'fsdp', ranks = { 0, 1 },
    from = 'comm.all_gather(w.ln_2.weight,',
    to = "comm.all_gather(require('nnscaler.ops').aten.mul(w.ln_2.weight, 1.01),",
    finds = names(forward, 'aten::layer_norm', kBlock .. 'ln_2', 'gpt%.lua:67') },
  { what = 'a gradient of another input', plan = 'fsdp', ranks = { 0 },
    from = 'nnscaler.linear_weight(d_c_fc, s.ln_2)', to = 'nnscaler.linear_weight(d_c_fc, s.ln_1)',
    finds = names(backward, 'aten::linear', 'transformer%.h%.1%.mlp%.c_fc', 'gpt%.lua:51') },
  { what = 'a stale weight', plan = 'fsdp', ranks = { 1 }, quick = true,
    edits = { { 'local block = {}', 'local block, stale = {}, {}' },
      { 's.c_fc = aten.linear(s.ln_2, weight)', 'stale[w] = stale[w] or weight:clone()\n'
        .. '  s.c_fc = aten.linear(s.ln_2, stale[w])' } }, step = 2,
    finds = names(forward, 'aten::linear', kBlock .. 'mlp%.c_fc', 'gpt%.lua:51') },
  { what = 'updated shards that nobody gathers', plan = 'zero1', ranks = { 0, 1 },
    from = 'o:gather(1, dp)', to = '', finds = state(weights, 'transformer%.wte%.weight') },
  { what = 'gradients that are scaled twice', plan = 'zero1', ranks = { 0, 1 },
    from = 'o:scale(1, factor)', to = 'o:scale(1, factor) o:scale(1, 0.5)',
    finds = state(gradients, 'transformer%.wte%.weight') },
}

local function replace(text, after, from, to, what)
  local start = 1
  if after then start = assert(text:find(after, 1, true), what) + #after end
  local first, last = text:find(from, start, true)
  assert(first, ('%s: the program has no %s'):format(what, from))
  return text:sub(1, first - 1) .. to .. text:sub(last + 1)
end

--- Plants a fault into programs of its plan, which are written first, and reads the report.
---@param fault nnscaler.tests.Fault
---@param recorded string recording of one device
---@param folder string where programs are kept, by plan
function M.check(fault, recorded, folder)
  local right, wrong = folder .. '/' .. fault.plan, folder .. '/wrong'
  if not base.file_exists(right) then
    local said, code = differences.with(recorded, fault.plan, right)
    assert(code == 0, said)
  end
  assert(select(2, shell.run(('rm -rf %s && cp -r %s %s'):format(wrong, right, wrong))) == 0)
  for _, rank in ipairs(fault.ranks) do
    local path = ('%s/GPT/gencode%d.lua'):format(wrong, rank)
    local text = base.file_read(path)
    for _, edit in ipairs(fault.edits or { { fault.from, fault.to } }) do
      text = replace(text, fault.after, edit[1], edit[2], fault.what)
    end
    base.file_write(path, text)
  end
  local said, code = differences.with(recorded, fault.plan, wrong)
  assert(code == 1, said)
  for _, pattern in ipairs(fault.finds) do
    if fault.step then pattern = pattern:gsub('step 1', 'step ' .. fault.step) end
    assert(said:find(pattern), ('%s: expected %s in\n%s'):format(fault.what, pattern, said))
  end
end

return M
