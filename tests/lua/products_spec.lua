-- Which kernel makes a matrix product: what was measured on this machine, else the rule; kernels
-- may be forbidden; measurements are kept, and not taken from elsewhere.
local MLP = require 'nnscaler.models.mlp'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local lower = require 'nnscaler._C.lower'
local measure = require 'nnscaler.profiler.products'
local products = require 'nnscaler.products'
local trace = require 'nnscaler.trace'

local function graph(dtype, rows)
  local model = MLP { sizes = { 256, 384, 192 } }
  model:to(dtype or 'float32')
  local x = T.randn({ rows or 256, 256 }, { generator = T.generator(1) }):to(dtype or 'float32')
  local y = T.randint(0, 192, { rows or 256 }, { generator = T.generator(2) })
  return trace(model, { x, y }, { training = true })
end

local function text_of(choice, of)
  return lower.lower(of or graph(), { products = choice }):lua()
end
local function count(text, name)
  local n = 0
  for found in text:gmatch '[%w_]+%.([%w_]+)%(' do n = n + (found == name and 1 or 0) end
  return n
end

local folder = os.tmpname()
os.remove(folder)
base.make_folder(folder)
local path = folder .. '/kernels.json'
local here = { host = 'h', processor = 'p', isa = 'avx2' }
local entry = { call = 'aten::linear float32 256x256x384', threads = 1, kernel = 'tiles',
  aten_s = 2, tiles_s = 1 }

describe('kernels of matrix products', function()
  teardown(function()
    os.remove(path)
    os.remove(folder)
  end)

  it('are ATen\'s where nobody says otherwise', function()
    assert.is_nil(text_of(nil):find('tiled', 1, true))
    assert.is_nil(text_of({}):find('tiled', 1, true))
  end)

  it('go by the rule for products that are large enough', function()
    local text = text_of { by_rule = true }
    assert.equal(2, count(text, 'tiled_linear'))
    assert.equal(2, count(text, 'tiled_linear_weight'))
    assert.equal(0, count(text, 'linear'))
    assert.is_nil(text_of({ by_rule = true }, graph('float32', 8)):find('tiled_linear(', 1, true))
    assert.is_nil(text_of({ by_rule = true }, graph 'float64'):find('tiled', 1, true))
  end)

  it('go by what was measured, product by product', function()
    local program = lower.lower(graph(), {})
    local keys = {}
    for i, p in ipairs(program:products()) do
      keys[i] = p.key
      assert.equal('aten', p.kernel)
    end
    assert.same({ 'aten::linear float32 256x256x384', 'aten::linear float32 256x384x192' },
      { keys[1], keys[2] })
    local weight = 'nnscaler::linear_weight float32 384x256x256'
    local text = text_of { by_rule = true,
      measured = { [keys[1]] = 'aten', [keys[2]] = 'tiles', [weight] = 'aten' } }
    assert.equal(1, count(text, 'tiled_linear'))
    assert.equal(1, count(text, 'linear'))
    assert.equal(1, count(text, 'tiled_linear_weight'))
    local tiled = lower.lower(graph(), { products = { by_rule = true } })
    assert.equal('tiles', tiled:products()[1].kernel)
    assert.equal(keys[1], tiled:products()[1].key)
  end)

  it('may be forbidden, but not the only one', function()
    local forbidden = text_of { by_rule = true, forbidden = { 'tiles' } }
    assert.is_nil(forbidden:find('tiled', 1, true))
    assert.equal(2, count(text_of { forbidden = { 'aten' } }, 'tiled_linear'))
    assert.error_matches(function()
      text_of({ forbidden = { 'aten' } }, graph 'float64')
    end, "%[lower.products%] aten::linear of [%w_.]+: forbidden are aten; expected that 'aten', "
      .. 'the only kernel for it, may serve it. hint: take one out of forbid_kernels')
    assert.error_matches(function() text_of { forbidden = { 'aten', 'tiles' } } end,
      "forbidden are aten, tiles; expected that 'aten' or 'tiles' may serve it", 1, true)
    assert.error_matches(function() products.choice(1, 'blis') end,
      "[products.forbid] forbid_kernels names 'blis'; expected aten or tiles", 1, true)
    assert.same({ 'tiles' }, products.choice(1, 'tiles').forbidden)
  end)

  it('are measured in turns, and kept', function()
    local list = lower.lower(graph(), {}):products()
    local measured = measure.measure(list, 1)
    assert.equal(#list, #measured)
    for i, m in ipairs(measured) do
      assert.equal(list[i].key, m.call)
      assert.equal(m.tiles_s < 0.97 * m.aten_s and 'tiles' or 'aten', m.kernel)
    end
    products.write(path, here, measured)
    assert.equal(#list, #products.read(path, here))
    local other = { call = measured[1].call, threads = 2, kernel = 'aten', aten_s = 1, tiles_s = 2 }
    products.write(path, here, { other })
    assert.equal(#list + 1, #products.read(path, here))
  end)

  it('are not taken from another machine, nor a damaged file, which is written anew', function()
    os.remove(path)
    products.write(path, here, { entry })
    for key, value in pairs { host = 'x', processor = 'y', isa = 'avx512' } do
      local machine = { host = here.host, processor = here.processor, isa = here.isa }
      machine[key] = value
      local list, why = products.read(path, machine)
      assert.is_nil(list)
      assert.equal(('it is of another machine: its %s is %s, not %s'):format(key, here[key], value),
        why)
    end
    local text = base.file_read(path, 'test')
    for _, change in ipairs { { '"kernel":"tiles"', '"kernel":"other"' },
      { '"threads":1', '"a":1' }, { 'nnscaler.kernels', 'else' }, { '%]%s*}%s*$', '' } } do
      local damaged, n = text:gsub(change[1], change[2])
      assert.equal(1, n)
      base.file_write(path, damaged, 'test')
      assert.same({ nil, 'it is damaged' }, { products.read(path, here) })
    end
    base.file_write(path, (text:gsub('"format": 1', '"format": 9')), 'test')
    local _, why = products.read(path, here)
    assert.equal('it has format 9, this version writes 1', why)
    products.write(path, here, { entry })
    assert.same({ entry }, products.read(path, here))
    assert.is_nil(products.read(folder .. '/none.json', here))
  end)
end)
