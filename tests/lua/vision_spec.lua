-- Models of images: the logits of timm and torchvision with their weights, read under their names.
-- tests/lua/vision holds weights and logits (tests/equivalence/make_vision.py).
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local nnscaler = require 'nnscaler'

local ResNet = require 'nnscaler.models.resnet'
local Swin = require 'nnscaler.models.swin'
local UNet = require 'nnscaler.models.unet'
local ViT = require 'nnscaler.models.vit'

local cases = {
  { 'resnet50', function() return ResNet { classes = 5, layers = { 1, 2, 1, 1 }, width = 2 } end },
  { 'resnet18', function() return ResNet { classes = 5, layers = 18, width = 2 } end },
  { 'vit', function()
    return ViT { classes = 5, image = 16, patch = 4, layers = 2, heads = 4, width = 16 }
  end },
  { 'swin', function()
    return Swin { classes = 5, image = 32, patch = 4, window = 4, width = 8, layers = { 2, 2 },
      heads = { 2, 4 } }
  end },
}

describe('models of images', function()
  for _, case in ipairs(cases) do
    local name, make = unpack(case)
    it(('give the logits of PyTorch: %s'):format(name), function()
      local stored = C.read_safetensors(('tests/lua/vision/%s.bin'):format(name))
      local model, count = make():materialize(0):eval(), 0
      local function read(entries, field)
        for _, entry in ipairs(entries) do
          if entry.persistent ~= false then
            local x = entry[field].data
            x:copy_(stored:read('w/' .. entry.name):view(x.shape))
            count = count + 1
          end
        end
      end
      T.no_grad(function()
        read(model:named_parameters(), 'param')
        read(model:named_buffers(), 'buffer')
      end)
      assert.equal(#stored:names(), count + 2)
      local logits = T.no_grad(function() return select(2, model(stored:read 'x')) end)
      local most = (logits - stored:read 'logits'):abs():max():item()
      assert.is_true(most <= 1e-5, ('the logits differ by %g'):format(most))
    end)
  end

  it('have the published numbers of parameters', function()
    local function count(model)
      local n = 0
      for _, entry in ipairs(model:named_parameters()) do
        local size = 1
        for _, s in ipairs(entry.param.shape) do size = size * s end
        n = n + size
      end
      return n
    end
    local function sized(Model, name)
      local a = { classes = 1000, image = 224 }
      for key, value in pairs(Model.configs[name]) do a[key] = value end
      return count(Model(a))
    end
    assert.equal(25557032, count(ResNet { classes = 1000 }))
    assert.equal(11689512, count(ResNet { classes = 1000, layers = 18 }))
    assert.equal(86567656, sized(ViT, 'base'))
    assert.equal(28288354, sized(Swin, 'tiny'))
    assert.equal(31036481, count(UNet { classes = 1, channels = 1 }))
  end)

  it('tell each pixel a class, for images of any multiple of their halvings', function()
    local model = UNet { classes = 3, depth = 2, width = 2 }:materialize(0)
    local generator = { generator = T.generator(0) }
    local loss, info = model { x = T.rand({ 2, 3, 8, 12 }, generator), y = T.zeros({ 2, 8, 12 },
      { dtype = 'int64' }) }
    assert.equal(2 * 8 * 12, info.tokens:item())
    assert.is_true(loss:item() > 0)
    assert.same({ 2, 8, 12, 3 }, select(2, model(T.rand({ 2, 3, 8, 12 }, generator))).shape)
    assert.error_matches(function() model(T.rand({ 1, 3, 8, 6 }, generator)) end,
      'an image of 8 × 6; expected multiples of 2^depth = 4')
  end)

  it('refuse sizes that do not fit', function()
    local function vit(change)
      local a = { classes = 5, image = 16, patch = 4, layers = 2, heads = 4, width = 16 }
      for key, value in pairs(change) do a[key] = value end
      return function() ViT(a) end
    end
    local function swin(change)
      local a = { classes = 5, image = 32, patch = 4, window = 4, width = 8, layers = { 2, 2 },
        heads = { 2, 4 } }
      for key, value in pairs(change) do a[key] = value end
      return function() Swin(a) end
    end
    assert.error_matches(vit { heads = 3 }, '3 heads do not divide width 16')
    assert.error_matches(vit { image = 18 }, 'patches of 4 pixels do not divide images of 18')
    assert.error_matches(swin { window = 3 },
      'windows of 3 do not divide the 8 patches of a side of stage 1')
    assert.error_matches(swin { image = 30 }, 'do not divide the 7.5 patches of a side of stage 1')
    assert.error_matches(swin { heads = { 2, 3 } }, '3 heads do not divide width 16 of stage 2')
    assert.error_matches(swin { heads = { 2 } }, 'heads has 1 sizes; expected 2, or one')
    assert.error_matches(function() ResNet { classes = 5, layers = 20 } end,
      'layers = 20; expected 18, 34, 50, 101, 152 or a list of 4')
    assert.error_matches(function() ResNet { classes = 5, layers = { 1, 2 } } end,
      'layers has 2 sizes; expected 4')
  end)
end)

describe('data.shapes', function()
  it('is a pure function of seed and index, with four shapes', function()
    local a, b = nnscaler.data.shapes { size = 40 }, nnscaler.data.shapes { size = 40 }
    local other = nnscaler.data.shapes { size = 40, split = 'val' }
    local seen = {}
    for i = 0, 39 do
      local x, y = a:get(i), b:get(i)
      assert.is_true(T.equal(x.x, y.x) and T.equal(x.y, y.y))
      assert.is_false(T.equal(x.x, other:get(i).x))
      seen[x.y:item() + 1] = true
    end
    assert.same({ true, true, true, true }, seen)
    assert.same({ 3, 32, 32 }, a:get(0).x.shape)
  end)

  it('labels pixels by the shape that the image has', function()
    local images = nnscaler.data.shapes { size = 20, image = 24 }
    local pixels = nnscaler.data.shapes { size = 20, image = 24, labels = 'pixels' }
    assert.equal(5, pixels.classes)
    for i = 0, 19 do
      local one, other = images:get(i), pixels:get(i)
      assert.is_true(T.equal(one.x, other.x))
      assert.equal(one.y:item() + 1, other.y:max():item())
      local share = other.y:gt(0):to('float32'):mean():item()
      assert.is_true(share > 0.02 and share < 0.5)
    end
  end)

  it('refuses what it cannot draw', function()
    assert.error_matches(function() nnscaler.data.shapes { image = 2 } end, 'image = 2; expected')
    assert.error_matches(function() nnscaler.data.shapes { labels = 'boxes' } end,
      "labels = 'boxes'; expected class, pixels")
  end)
end)

describe('data.masked', function()
  local base = require 'nnscaler._C.base'
  local path = os.tmpname()
  base.file_write(path, ('the quick brown fox jumps over the lazy dog. '):rep(200))
  teardown(function() os.remove(path) end)
  local text = nnscaler.data.characters(path, { block = 64 })

  it('chooses a share of the tokens, hides most of them and labels them alone', function()
    local data = nnscaler.data.masked(text)
    assert.equal(text.vocab + 1, data.vocab)
    local options = { batch = 64, seed = 3 }
    local plain, masked = text:training_loader(options), data:training_loader(options)
    local x, m = plain:get(5).x, masked:get(5)
    local chosen = m.y:ne(-100)
    local function count(mask) return mask:sum():item() end
    assert.is_true(math.abs(count(chosen) / x:numel() - 0.15) < 0.02)
    assert.is_true(T.equal(m.y:masked_select(chosen), x:masked_select(chosen)))
    local left = chosen:logical_not()
    assert.is_true(T.equal(m.x:masked_select(left), x:masked_select(left)))
    assert.is_true(math.abs(count(m.x:eq(data.mask)) / count(chosen) - 0.8) < 0.08)
    assert.is_true(count(m.x:eq(x):logical_and(chosen)) / count(chosen) < 0.2)
    assert.is_true(T.equal(m.x, data:training_loader(options):get(5).x))
    assert.is_false(T.equal(m.x, masked:get(6).x))
  end)

  it('refuses what it cannot mask', function()
    assert.error_matches(function() nnscaler.data.masked(3) end, 'the sequence is a number')
    assert.error_matches(function() nnscaler.data.masked(text, { mask = 99 }) end,
      'mask = 99; the tokens are below 28')
    assert.error_matches(function() nnscaler.data.masked(text, { share = 2 }) end, 'probability 2')
  end)
end)
