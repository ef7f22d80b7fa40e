-- Data sets, samplers and loaders.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local data = require 'nnscaler.data'

local folder = os.tmpname() .. '.d'
base.make_folder(folder)

local function file(name, bytes)
  local path = folder .. '/' .. name
  base.file_write(path, bytes)
  return path
end

-- Little-endian 16-bit ids.
local function packed(ids)
  local out = {}
  for i, id in ipairs(ids) do out[i] = string.char(id % 256, math.floor(id / 256)) end
  return table.concat(out)
end

local function refusal(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  return tostring(err), err.kind
end

local function list(t) return t:tolist() end

teardown(function() os.execute("rm -rf '" .. folder .. "'") end)

describe('characters', function()
  local text = ('to be, or not to be: that is the question.\n'):rep(20)
  local path = file('text.txt', text)

  it('number the characters by code point and come back', function()
    local set = data.characters(path, { block = 8 })
    local expected, seen = {}, {}
    for c in text:gmatch '.' do
      if not seen[c] then seen[c], expected[#expected + 1] = true, c end
    end
    table.sort(expected)
    assert.equal(#expected, set.vocab)
    assert.same(expected, set:vocabulary().characters)
    assert.equal('not to be', set:decode(set:encode 'not to be'))
    local codec = require('nnscaler.data.characters').decoder(set:vocabulary())
    assert.same(set:encode 'to be', codec:encode 'to be')
    assert.equal('to be', codec:decode(codec:encode 'to be'))
    assert.matches("the character 'Z' at byte 3 of 'text' is not in the vocabulary of %d+",
      refusal(set.encode, set, 'to Z'))
  end)

  it('give windows whose targets are the next characters', function()
    local set = data.characters(path, { block = 8 })
    local loader = set:training_loader { batch = 3, seed = 5 }
    assert.is_nil(loader.per_epoch)
    local sample, starts = loader:get(4), loader:ids(4)
    assert.same({ 3, 8 }, sample.x.shape)
    assert.equal('int64', sample.x.dtype)
    local x, y = list(sample.x), list(sample.y)
    for row, start in ipairs(starts) do
      assert.equal(text:sub(start + 1, start + 8), set:decode(x[row]))
      assert.equal(text:sub(start + 2, start + 9), set:decode(y[row]))
    end
  end)

  it('keep validation apart from training', function()
    local set = data.characters(path, { block = 8, validation = 0.25 })
    local loader = set:training_loader { batch = 16 }
    local cut = math.floor(#text * 0.75)
    assert.equal(cut, set.train_tokens)
    for n = 0, 30 do
      for _, start in ipairs(loader:ids(n)) do assert.is_true(start >= 0 and start + 9 <= cut) end
    end
    local pass = set:validation_loader { batch = 4 }
    local seen = {}
    for n = 0, pass.per_epoch - 1 do
      local sample = pass:get(n)
      for _, row in ipairs(list(sample.y)) do seen[#seen + 1] = set:decode(row) end
      assert.is_true(pass:ids(n)[1] >= cut)
    end
    assert.equal(text:sub(cut + 2), table.concat(seen))
    assert.matches('there is no micro%-batch', refusal(pass.get, pass, pass.per_epoch))
  end)

  it('repeat for a seed, in any order of asking, with and without prefetching', function()
    local set = data.characters(path, { block = 8, sampling = 'epoch' })
    local ahead = set:training_loader { batch = 5, seed = 1, prefetch = 3 }
    local plain = set:training_loader { batch = 5, seed = 1, prefetch = 0 }
    local other = set:training_loader { batch = 5, seed = 2 }
    assert.equal(math.floor(math.floor((set.train_tokens - 1) / 8) / 5), ahead.per_epoch)
    for _, n in ipairs { 0, 1, 2, 3, 40, 41, 7, 8, 7, 0 } do
      assert.same(list(plain:get(n).x), list(ahead:get(n).x))
      assert.same(plain:ids(n), ahead:ids(n))
    end
    assert.not_same(plain:ids(0), other:ids(0))
  end)

  it('accept none to validate', function()
    local set = data.characters(path, { block = 8, validation = 0 })
    assert.is_nil(set:validation_loader { batch = 1 })
    assert.equal(#text, set.train_tokens)
  end)

  it('say what is wrong', function()
    local message, kind = refusal(data.characters, folder .. '/none.txt', { block = 8 })
    assert.matches("%[data.characters%] cannot read '.*/none.txt': No such file", message)
    assert.equal('usage', kind)
    message, kind = refusal(data.characters, file('empty.txt', ''), { block = 8 })
    assert.matches("%[data.characters%] '.*/empty.txt' is empty; expected text", message)
    assert.equal('data', kind)
    message, kind = refusal(data.characters, file('short.txt', ('x'):rep(60)), { block = 64 })
    assert.matches("'.*/short.txt' has 60 tokens, 54 of them to train on; a block of 64 needs at "
      .. 'least 65', message)
    assert.equal('data', kind)
    assert.matches('leaves 20 tokens to validate on; a block of 64 needs at least 65',
      refusal(data.characters, file('short2.txt', ('x'):rep(200)), { block = 64 }))
    assert.matches("is not UTF%-8 text: byte 1 is 0xff",
      refusal(data.characters, file('bad.txt', 'a\255'), { block = 1 }))
    assert.matches('block = 0; expected an integer of at least 1',
      refusal(data.characters, path, { block = 0 }))
    assert.matches('block = nil; expected an integer', refusal(data.characters, path))
    assert.matches('validation = 1; expected a share',
      refusal(data.characters, path, { block = 8, validation = 1 }))
    assert.matches("unknown option 'blok'; expected block, validation",
      refusal(data.characters, path, { blok = 8 }))
    assert.matches("sampling = 'all'; expected 'random' or 'epoch'",
      refusal(data.characters, path, { block = 8, sampling = 'all' }))
    local set = data.characters(path, { block = 8 })
    assert.matches('batch = 0; expected at least 1',
      refusal(set.training_loader, set, { batch = 0 }))
  end)

  it('take their path from a table too', function()
    assert.equal(8, data.characters({ path = path, block = 8 }).block)
    assert.matches('path = nil; expected the name of a file',
      refusal(data.characters, { block = 8 }))
  end)
end)

describe('tokens', function()
  local ids = {}
  for i = 1, 200 do ids[i] = (i * 37) % 500 end
  local path = file('ids.bin', packed(ids))

  it('are read from 16-bit files', function()
    local set = data.tokens(path, { block = 10, vocab = 500 })
    local sample = set:training_loader({ batch = 2 }):get(0)
    assert.same({ 2, 10 }, sample.y.shape)
    assert.equal(500, set.vocab)
    local whole = data.tokens(path, { block = 10, sampling = 'epoch', validation = 0 })
    assert.equal(499 + 1, whole.vocab)
    local all = whole:training_loader { batch = 19 }
    local order, seen = all:ids(0), {}
    for row, values in ipairs(list(all:get(0).x)) do
      for k, id in ipairs(values) do seen[order[row] + k] = id end
    end
    for i = 1, 190 do assert.equal(ids[i], seen[i]) end
  end)

  it('come in an order of samples, whatever the size of batches', function()
    local first, second = os.tmpname(), os.tmpname()
    for k, shard in ipairs { first, second } do
      local bytes = {}
      for i = 0, 399 do bytes[i + 1] = string.char((i * 7 + k) % 251, 0) end
      base.file_write(shard, table.concat(bytes))
    end
    local C = require 'nnscaler._C.data'
    local shards = C.token_files('two shards', { first, second })
    for _, order in ipairs { 'random', 'epoch' } do
      local function starts(batch, count)
        local windows, all = C.windows(shards, { begin = 0, stop = shards:size(), order = order,
          block = 8, batch = batch, seed = 5 }), {}
        for n = 0, count / batch - 1 do
          for _, start in ipairs(windows:starts(n)) do all[#all + 1] = start end
        end
        return all
      end
      assert.equal(96, #starts(1, 96))
      assert.same(starts(1, 96), starts(4, 96))
      assert.same(starts(1, 96), starts(6, 96))
    end
    os.remove(first)
    os.remove(second)
  end)

  it('validate on a second file', function()
    local second = file('val.bin', packed { 1, 2, 3, 4, 5, 6 })
    local set = data.tokens(path, { block = 4, validation_file = second })
    assert.equal(200, set.train_tokens)
    local pass = set:validation_loader { batch = 8 }
    assert.equal(2, pass.per_epoch)
    assert.same({ { 2, 3, 4, 5 } }, list(pass:get(0).y))
    assert.same({ { 6 } }, list(pass:get(1).y))
  end)

  it('say what is wrong', function()
    local set = data.tokens(path, { block = 10, vocab = 400, sampling = 'epoch', validation = 0 })
    local loader = set:training_loader { batch = 19 }
    local message, kind = refusal(loader.get, loader, 0)
    assert.matches("%[data.windows%] token %d+ of '.*ids.bin' is 4%d%d; expected below the "
      .. 'vocabulary of 400', message)
    assert.equal('data', kind)
    assert.matches('has 3 bytes; expected an even number',
      refusal(data.tokens, file('odd.bin', 'abc'), { block = 1 }))
    assert.matches('is empty', refusal(data.tokens, file('none.bin', ''), { block = 1 }))
    assert.matches('vocab = 0; expected', refusal(data.tokens, path, { block = 1, vocab = 0 }))
  end)
end)

describe('a loader over an object', function()
  local function numbers(size)
    return {
      len = function() return size end,
      get = function(_, i)
        return { value = T.tensor { i, -i }, inner = { T.full({}, i, { dtype = 'int64' }) } }
      end,
    }
  end

  it('stacks nested tables', function()
    local loader = data.loader { dataset = numbers(5), batch = 2 }
    assert.equal(3, loader.per_epoch)
    local sample = loader:get(1)
    assert.same({ { 2, -2 }, { 3, -3 } }, list(sample.value))
    assert.same({ 2, 3 }, list(sample.inner[1]))
    assert.same({ { 4, -4 } }, list(loader:get(2).value))
    assert.same({ 0, 1 }, loader:ids(3))
    assert.equal(2, data.loader({ dataset = numbers(5), batch = 2, drop_last = true }).per_epoch)
  end)

  it('shuffles each epoch anew, every sample once', function()
    local loader = data.loader { dataset = numbers(50), batch = 7, shuffle = true, seed = 3 }
    local orders = {}
    for epoch = 0, 1 do
      local seen, order = {}, {}
      for n = epoch * 8, epoch * 8 + 7 do
        for _, i in ipairs(loader:ids(n)) do
          assert.is_nil(seen[i])
          seen[i], order[#order + 1] = true, i
        end
      end
      assert.equal(50, #order)
      orders[epoch] = order
    end
    assert.not_same(orders[0], orders[1])
  end)

  it('takes a collate and a sampler', function()
    local loader = data.loader { dataset = numbers(4), batch = 2,
      collate = function(samples) return #samples end,
      sampler = { index = function(_, _, position, size) return size - 1 - position end } }
    assert.same({ 3, 2 }, loader:ids(0))
    assert.equal(2, loader:get(0))
  end)

  it('deals micro-batches to replicas', function()
    local loader = data.loader { dataset = numbers(8), batch = 2, replicas = 2, rank = 1 }
    assert.same({ { 2, -2 }, { 3, -3 } }, list(loader:get(1).value))
    assert.matches('micro%-batch 2 belongs to replica 0; this is replica 1 of 2',
      refusal(loader.get, loader, 2))
    local seen = {}
    for rank = 0, 2 do
      local sampler = data.sampler { replicas = 3, rank = rank, seed = 9 }
      for _, i in ipairs(sampler:indices(4, 10)) do seen[#seen + 1] = i end
    end
    table.sort(seen)
    assert.same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 }, seen)
  end)

  it('says what is wrong', function()
    local function odd(second)
      return { len = function() return 2 end,
        get = function(_, i) return i == 0 and { a = T.zeros { 2 } } or second end }
    end
    local function get(second)
      local loader = data.loader { dataset = odd(second), batch = 2 }
      return refusal(loader.get, loader, 0)
    end
    assert.matches("sample%['a'%] of sample 1 of the batch is float32%[3%], of the first "
      .. 'float32%[2%]', get { a = T.zeros { 3 } })
    assert.matches("sample%['a'%] of sample 1 of the batch is a number", get { a = 3 })
    assert.matches("lacks the field 'a'", get { b = T.zeros { 2 } })
    assert.matches('has not the fields of the first: a', get {})
    local loader = data.loader { dataset = { len = function() return 1 end,
      get = function() return { x = 1 } end }, batch = 1 }
    assert.matches("sample%['x'%] is a number; expected tensors", refusal(loader.get, loader, 0))
    assert.matches('without len%(%) and get%(i%)', refusal(data.loader,
      { dataset = {}, batch = 1 }))
    assert.matches('batch = 1.5; expected', refusal(data.loader, { dataset = odd(), batch = 1.5 }))
    assert.matches('has 0 samples', refusal(data.loader, { dataset = numbers(0), batch = 1 }))
    assert.matches('has 2 samples; a batch needs 3',
      refusal(data.loader, { dataset = numbers(2), batch = 3, drop_last = true }))
    assert.matches("unknown option 'shufle'",
      refusal(data.loader, { dataset = numbers(2), batch = 1, shufle = true }))
    assert.matches('rank 2 of 2 replicas', refusal(data.sampler, { replicas = 2, rank = 2 }))
  end)
end)

describe('training_loader and pass', function()
  it('make loaders of both kinds of data sets', function()
    local set = data.random_samples { size = 10, width = 3, classes = 4 }
    local loader = data.training_loader(set, { batch = 5, seed = 0 })
    local sample = loader:get(0)
    assert.same({ 5, 3 }, sample.x.shape)
    assert.same({ 5 }, sample.y.shape)
    assert.equal('int64', sample.y.dtype)
    assert.is_nil(data.validation_loader(set, { batch = 5 }))
    assert.same({ 0, 1, 2, 3 }, data.pass(set, { batch = 4 }):ids(0))
    assert.equal(loader, data.training_loader(loader, { batch = 5 }))
  end)

  it('give random samples that are a function of seed and index', function()
    local a, b = data.random_samples {}, data.random_samples { seed = 1 }
    assert.same(list(a:get(7).x), list(data.random_samples({}):get(7).x))
    assert.not_same(list(a:get(7).x), list(b:get(7).x))
    assert.not_same(list(a:get(7).x), list(a:get(8).x))
    assert.not_same(list(a:get(7).x), list(data.random_samples({ split = 'val' }):get(7).x))
    local low, high, classes = 1, 0, {}
    for i = 0, a:len() - 1 do
      for _, x in ipairs(list(a:get(i).x)) do low, high = math.min(low, x), math.max(high, x) end
      classes[a:get(i).y:item()] = true
    end
    assert.is_true(low >= 0 and low < 0.01 and high > 0.99 and high < 1)
    for class = 0, 9 do assert.is_true(classes[class]) end
  end)
end)
