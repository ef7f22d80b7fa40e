--- docs/torch-nn.md: every name of torch.nn and torch.nn.functional beside what there is here.
--- NNSCALER_UPDATE=1 writes its tables.
local F = require 'nnscaler.functional'
local base = require 'nnscaler._C.base'
local names = require 'tests.lua.torch_names'
local nn = require 'nnscaler.nn'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

-- What stands under another name, and why the rest is not there.
local other_modules = {
  MultiheadAttention = '`nn.MultiHeadAttention`: batch first, `forward(query, memory, { causal, '
    .. 'mask })`; the same weights',
  SyncBatchNorm = '`nn.BatchNorm1d` …: where a plan cuts the batch, statistics are of all of it',
  DataParallel = '`pas_policy = dp`', NLLLoss2d = '`nn.NLLLoss`',
  CrossMapLRN2d = '`nn.LocalResponseNorm`',
}
local other_functions = {
  multi_head_attention_forward = '`nn.MultiHeadAttention`',
  native_channel_shuffle = '`F.channel_shuffle`',
  upsample_bilinear = '`F.interpolate`', upsample_nearest = '`F.interpolate`',
}
local unpooling = 'not offered: pooling returns no positions'
local random = 'not offered: draws its windows from hidden state'
local lazy = 'not offered: sizes are arguments'
local bases = 'not offered: a base of others alone'
local absent_modules = {
  AdaptiveLogSoftmaxWithLoss = 'not offered: shapes inside depend on data', Container = bases,
  RNNBase = bases, RNNCellBase = bases, FractionalMaxPool2d = random, FractionalMaxPool3d = random,
  MaxUnpool1d = unpooling, MaxUnpool2d = unpooling, MaxUnpool3d = unpooling,
  LinearCrossEntropyLoss = 'not offered: `F.linear_cross_entropy`',
}
local eight = 'not offered: eight-bit products'
local absent_functions = {
  conv_tbc = 'not offered: `F.conv1d` of the transposed', fractional_max_pool2d = random,
  fractional_max_pool3d = random, max_unpool1d = unpooling, max_unpool2d = unpooling,
  max_unpool3d = unpooling,
  grouped_mm = 'not offered', scaled_mm = eight, scaled_addmm = eight, scaled_grouped_mm = eight,
}

local function rows(list, there, prefix, torch, others, absent)
  local out, known = {}, {}
  for name in list:gmatch '%S+' do
    known[name] = true
    local here = there[name] and ('`%s.%s`'):format(prefix, name) or others[name] or absent[name]
      or name:match '^Lazy' and lazy
    assert(here, name .. ' of PyTorch is neither there nor explained')
    assert(not (there[name] and (others[name] or absent[name])), name .. ' is there')
    out[#out + 1] = ('| `%s.%s` | %s |\n'):format(torch, name, here)
  end
  for _, explained in ipairs { others, absent } do
    for name in sorted_pairs(explained) do assert(known[name], name .. ' is no name of PyTorch') end
  end
  return table.concat(out)
end

it('docs/torch-nn.md shows what there is of torch.nn', function()
  local path = 'docs/torch-nn.md'
  local page = base.file_read(path)
  local head = page:match '^(.-\n)## Layers\n'
  local now = ('%s## Layers\n\nNames of PyTorch %s.\n\n| PyTorch | here |\n|---|---|\n%s'
    .. '\n## Functions\n\n| PyTorch | here |\n|---|---|\n%s'):format(head, names.version,
    rows(names.modules, nn, 'nn', 'nn', other_modules, absent_modules),
    rows(names.functions, F, 'F', 'F', other_functions, absent_functions))
  if os.getenv 'NNSCALER_UPDATE' then base.file_write(path, now) end
  assert.equal(now, base.file_read(path))
end)
