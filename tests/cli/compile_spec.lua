-- `nnscaler compile`, and the page that shows the program of the GPT. Where the page is old:
--   NNSCALER_UPDATE=1 build/nnscaler test tests/cli --filter 'page shows'
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local tiny = 'recipes/nanogpt.lua preset=tiny threads=1'

describe('nnscaler compile', function()
  it('writes the program and prints where, without training', function()
    local said, code = shell.nnscaler(('compile %s gen_savedir=%s/gen --log-level error')
      :format(tiny, folder))
    assert.equal(('%s/gen/GPT/gencode0.lua\n%s/gen/GPT/gencode0.eval.lua\n'):format(folder, folder),
      said)
    assert.equal(0, code)
  end)

  it('says which shapes a program is for', function()
    local said = shell.nnscaler(('compile %s gen_savedir=%s/said'):format(tiny, folder))
    assert.truthy(said:find('GPT specialised to training {x=int64[4,32], y=int64[4,32]}', 1, true))
  end)

  it('writes the same bytes in every process', function()
    for _, name in ipairs { 'one', 'two' } do
      shell.nnscaler(('compile %s gen_savedir=%s/%s'):format(tiny, folder, name))
    end
    for _, file in ipairs { 'gencode0.lua', 'gencode0.eval.lua' } do
      local one = base.file_read(('%s/one/GPT/%s'):format(folder, file))
      assert.equal(one, base.file_read(('%s/two/GPT/%s'):format(folder, file)))
      assert.truthy(#one > 1000)
    end
  end)

  it('refuses what has no program', function()
    local said, code = shell.nnscaler(('compile %s eager=true'):format(tiny))
    assert.truthy(said:find('[compile.eager] eager=true runs without a generated program', 1, true))
    assert.equal(2, code)
  end)
end)

-- A program in parts as the page shows them: a part starts at each function and at the return.
local function parts_of(text)
  local parts = { '' }
  for line in text:gmatch '([^\n]*\n)' do
    local starts = line:find '^%-%- transformer' or line:find '^%-%- model%.layers'
      or line:find '^local function' or line:find '^%-%- The step of an optimizer'
      or line:find '^return'
    if starts then parts[#parts + 1] = '' end
    parts[#parts] = parts[#parts] .. line
  end
  return parts
end

it('a text goes round a ring of GPUs by flash attention in 16 bits', function()
  for precision, fused in require('nnscaler.sorted').sorted_pairs { bf16 = true, fp32 = false } do
    local said, code = shell.nnscaler(('compile recipes/llama3.lua preset=tiny device=cuda '
      .. 'precision=%s compute_config.runtime_ngpus=2 compute_config.plan_ngpus=2 '
      .. 'pas_policy=megatron pas_config.context_parallel=2 gen_savedir=%s/%s'):format(precision,
      folder, precision))
    assert.equal(0, code, said)
    local text = base.file_read(('%s/%s/Llama/gencode0.lua'):format(folder, precision))
    for _, call in ipairs { 'comm.rotate', 'nnscaler.attention', 'nnscaler.attention_backward' } do
      assert.equal(fused, text:find(call .. '(', 1, true) ~= nil, precision .. ' ' .. call)
    end
  end
end)

describe('docs/generated-code.md', function()
  it('this page shows what the program writes today', function()
    local page = 'docs/generated-code.md'
    shell.nnscaler(('compile %s forbid_kernels=tiles gen_savedir=%s/page'):format(tiny, folder))
    shell.nnscaler(('compile recipes/llama3.lua preset=tiny compute_config.runtime_ngpus=2 '
      .. 'forbid_kernels=tiles '
      .. 'pas_policy=tests/bench/layers_policy.lua gen_savedir=%s/page'):format(folder))
    local shown, now = base.file_read(page), nil
    local function fill(tag, path, most)
      local written, at = parts_of(base.file_read(path)), 0
      now = (now or shown):gsub('(```lua ' .. tag .. '\n)(.-)(```\n)', function(open, _, close)
        at = at + 1
        return open .. (written[at] or ''):gsub('\n+$', '\n') .. close
      end)
      assert.equal(most or #written, at)
    end
    fill('generated', folder .. '/page/GPT/gencode0.lua')
    fill('plan', folder .. '/page/Llama/gencode1.lua', 2)
    for _, policy in ipairs { 'dp', 'fsdp', 'pp' } do
      shell.nnscaler(('compile %s compute_config.runtime_ngpus=2 pas_policy=%s gen_savedir=%s/%s')
        :format(tiny, policy, folder, policy))
      local written, step = parts_of(base.file_read(('%s/%s/GPT/gencode0.lua'):format(folder,
        policy))), nil
      for _, part in ipairs(written) do
        if part:find '^%-%- The step' then step = part:gsub('\n+$', '\n') end
      end
      assert.truthy(select(2, step:gsub('\n', '')) <= 40)
      local count
      now, count = now:gsub('(```lua ' .. policy .. '\n)(.-)(```\n)', function(open, _, close)
        return open .. step .. close
      end)
      assert.equal(1, count)
    end
    if os.getenv 'NNSCALER_UPDATE' then base.file_write(page, now) end
    assert.equal(now, base.file_read(page))
  end)
end)
