-- What an imported program is as a module: names and values are PyTorch's, graphs say where in the
-- Python source calls were made, sizes left open may vary, and other arguments are refused.
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local import = require 'nnscaler.import'
local python = require 'tests.equivalence.pytorch.python'
local trace = require 'nnscaler.trace'

local function double(shape) return T.zeros(shape, { dtype = 'float64' }) end

describe('an imported program', function()
  local folder
  setup(function() folder = python.written_by 'export.py' end)
  teardown(function() python.remove() end)

  local function case(name, body)
    it(name, function()
      if not folder then return pending(python.missing) end
      body()
    end)
  end

  case('has the state that PyTorch saves', function()
    for _, name in ipairs { 'mlp', 'gpt', 'resnet', 'body' } do
      local stored = C.read_safetensors(('%s/%s.safetensors'):format(folder, name))
      local model = import(('%s/%s.pt2'):format(folder, name)):materialize(0)
      local prefix = name == 'body' and 's/body.' or 's/'
      local known = {}
      for _, entry in ipairs(model:state_dict()) do known[entry.name] = entry.tensor end
      for _, tie in ipairs(model:tied_names()) do known[tie.alias] = known[tie.name] end
      local count = 0
      for _, key in ipairs(stored:names()) do
        if key:sub(1, 2) == 's/' then
          local mine = known[key:sub(#prefix + 1)]
          assert.is_truthy(mine, key)
          assert.is_true(mine.data:equal(stored:read(key)), key)
          count = count + 1
        end
      end
      local mine = 0
      for _ in pairs(known) do mine = mine + 1 end
      assert.equal(count, mine, name)
    end
  end)

  case('ties what PyTorch ties, and keeps what no file holds', function()
    local model = import(folder .. '/mlp.pt2')
    assert.same({ { alias = 'tied.weight', name = 'head.weight' } }, model:tied_names())
    local persistent = {}
    for _, entry in ipairs(model:named_buffers()) do persistent[entry.name] = entry.persistent end
    assert.same({ scale = true, shift = false }, persistent)
    assert.equal('path.weight', model:named_parameters()[1].name)
  end)

  case('is traced with module paths and lines of Python, for any number of rows', function()
    local model = import(folder .. '/mlp.pt2')
    for _, rows in ipairs { 6, 9 } do
      local graph = trace.trace(model, { double { rows, 6 }, double { rows, 6 } })
      local text = graph:text()
      assert.matches(('aten::linear.-float64%%[%d, 8%%].-export%%.py'):format(rows), text)
      assert.matches('blocks%.3%.proj', text)
    end
  end)

  case('gives nested results, several for a tuple', function()
    local model = import(folder .. '/mlp.pt2'):materialize(0)
    local loss, more = model(double { 4, 6 }, double { 4, 6 })
    assert.same({}, loss.shape)
    assert.equal(4, more.tokens:item())
    assert.equal(3, more.parts[2])
    assert.is_true(more.range.least:item() < more.range.most:item())
    local by_name = model { x = double { 4, 6 }, y = double { 4, 6 } }
    assert.equal(loss:item(), by_name:item())
  end)

  case('refuses arguments that it was not exported for', function()
    local gpt, tokens = import(folder .. '/gpt.pt2'):materialize(0), T.zeros { 3, 8 }
    assert.error_matches(function() gpt(tokens:to 'int64', tokens:to 'int64') end,
      "argument 'tokens' is int64%[3, 8%]; the program was exported for int64%[6, 8%]")
    tokens = T.zeros { 6, 8 }
    assert.error_matches(function() gpt(tokens, tokens) end,
      "argument 'tokens' is float32%[6, 8%]; the program was exported for int64%[6, 8%]")
    assert.error_matches(function() gpt(tokens:to 'int64') end, "argument 'labels' is nil")
    assert.error_matches(function() gpt(tokens, tokens, tokens) end,
      '3 arguments are given; the program was exported with 2')
    assert.error_matches(function() gpt.h['0'](tokens) end,
      "module 'h%.0' of an exported program is called; expected the whole program")
    assert.error_matches(function() import(3) end, 'the path is a number; expected a .pt2 file')
  end)

  case('evaluates by its evaluation variant, or not at all', function()
    for _, name in ipairs { 'resnet', 'decomposed' } do
      local path = ('%s/%s.pt2'):format(folder, name)
      local stored = C.read_safetensors(('%s/%s.safetensors'):format(folder, name))
      local sample = { images = stored:read 'in/0/0', classes = stored:read 'in/0/1' }
      local model = import { path, evaluation = ('%s/%s_eval.pt2'):format(folder, name) }
        :materialize(0):eval()
      local want = stored:read('evaluated'):item()
      assert.is_true(math.abs(model(sample):item() / want - 1) <= 1e-12)
      assert.is_true(math.abs(model:train()(sample):item() / want - 1) > 1e-3)
      model = import(path):materialize(0):eval()
      assert.error_matches(function() model(sample) end,
        "was exported in training mode: aten::batch_norm in module 'bn' at export%.py:%d+")
      assert.error_matches(function() import { path, evaluation = folder .. '/gpt.pt2' } end,
        'expected variants of one model')
    end
  end)
end)
