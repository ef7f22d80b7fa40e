-- Published architectures, exported by PyTorch with their loss, train as in PyTorch (float64):
-- three steps on one rank and under plans. docs/import.md has the table that this spec writes:
--   NNSCALER_UPDATE=1 build/nnscaler test tests/long/import_spec.lua
-- It needs transformers, torchvision and timm beside PyTorch; NNSCALER_VENV names another
-- environment that has them.
local base = require 'nnscaler._C.base'
local on_ranks = require 'tests.equivalence.support.on_ranks'
local python = require 'tests.equivalence.pytorch.python'

local LIMIT = 1e-10
local page = 'docs/import.md'
-- ranks, plan_ngpus, policy
local plans = { { 1, 1, 'dp' }, { 2, 1, 'dp' }, { 2, 2, 'tp' }, { 2, 2, 'autodist' },
  { 2, 2, 'pp' } }
local names = 'gpt2 llama qwen2 qwen3 mistral gemma phi bert roberta t5 mixtral deepseek_v2 vit '
  .. 'dinov2 resnet18 swin_t convnext timm_vit efficientnet whisper clip unet dit detr '
  .. 'graph_network lstm mamba'

local constructs = 'Codebook Frozen Padded Grouped OneKey Open Routes Signals Again ChannelsLast'

local missing = python.lacks 'transformers, torchvision, timm'
local folder, lines = nil, {}

-- What a plan gave: the greatest distance from PyTorch, or why there is none.
local function outcome(name, plan, rows)
  local path = ('%s/%s'):format(folder, name)
  local ok, all = pcall(on_ranks, plan[1], 'tests.equivalence.import.rank', {
    model = path .. '.pt2', values = path .. '.safetensors', ranks = plan[1], plan = plan[2],
    policy = plan[3], rows = rows, rate = 1e-3,
  })
  if not ok then return nil, tostring(all):match '^[^\n]*' end
  local far = 0
  for _, got in ipairs(all) do
    assert(#got.losses == 3 and got.parameters > 0)
    for _, off in ipairs(got.losses) do far = math.max(far, off) end
    for _, off in pairs(got.far) do far = math.max(far, off) end
  end
  return far
end

-- Under all plans that may be; another scale unit would not see what a codebook learns.
local function expect_equal(name, rows)
  local cells = {}
  for i, plan in ipairs(plans) do
    if name ~= 'Codebook' or plan[1] == plan[2] and plan[3] ~= 'pp' then
      local far, why = outcome(name, plan, rows)
      assert.is_true(far ~= nil and far <= LIMIT, ('%s on %d: %s'):format(plan[3], plan[1],
        why or ('%.3g off'):format(far)))
      cells[i] = 'equal'
    end
  end
  return cells
end

describe('exported architectures train as in PyTorch,', function()
  setup(function()
    if not missing then folder = python.written_by 'architectures.py' end
  end)
  teardown(function() python.remove() end)

  for name in names:gmatch '%S+' do
    it(name, function()
      if missing then return pending(missing) end
      lines[#lines + 1] = ('| %s | %s |\n'):format(name, table.concat(expect_equal(name, 2), ' | '))
    end)
  end

  it('and the table of docs/import.md says so', function()
    if missing then return pending(missing) end
    local head = '| architecture | 1 rank | dp 2 | tp 2 | autodist 2 | pp 2 |\n'
      .. '|---|---|---|---|---|---|\n'
    local text = base.file_read(page)
    local first = text:find('| architecture |', 1, true)
    local want = text:sub(1, first - 1) .. head .. table.concat(lines) -- the end of the page
    if os.getenv 'NNSCALER_UPDATE' then base.file_write(page, want) end
    assert.equal(want, base.file_read(page))
  end)
end)

describe('what exported models are made of trains as in PyTorch,', function()
  setup(function() folder = python.written_by 'constructs.py' end)
  teardown(function() python.remove() end)

  for name in constructs:gmatch '%S+' do
    it(name, function()
      if not folder then return pending(python.missing) end
      expect_equal(name, 6)
    end)
  end
end)
