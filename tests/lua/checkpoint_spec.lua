-- Checkpoints: what is saved comes back; what is broken is named and changes nothing.
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local checkpoint = require 'nnscaler.checkpoint'

local root = os.tmpname() .. '.d'
base.make_folder(root)
teardown(function() os.execute("rm -rf '" .. root .. "'") end)

local count = 0
local function fresh()
  count = count + 1
  return root .. '/' .. count
end

local function refusal(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  return tostring(err), err
end

local function weights(offset)
  offset = offset or 0
  local grid = T.arange(12, { dtype = 'float32' }):reshape { 3, 4 }
  return {
    { name = 'wte.weight', data = grid:add(offset) },
    { name = 'bias', data = T.arange(5, { dtype = 'float64' }):mul(0.1):add(offset) },
    { name = 'running', data = T.full({}, 7 + offset, { dtype = 'int64' }), persistent = true },
    { name = 'cache', data = T.zeros { 2 }, persistent = false },
  }
end

local function moments()
  return {
    { parameter = 'wte.weight', name = 'exp_avg', data = T.full({ 3, 4 }, 0.5) },
    { parameter = 'wte.weight', name = 'exp_avg_sq', data = T.full({ 3, 4 }, 0.25) },
  }
end

local function contents(step, more)
  local c = { epoch = 0, step = step, weights = weights(step), optimizer = moments(),
    aliases = { { alias = 'lm_head.weight', name = 'wte.weight' } }, state = { best = 1.5 } }
  for _, key in ipairs(require('nnscaler.sorted').sorted_keys(more or {})) do c[key] = more[key] end
  return c
end

local function values(list)
  local out = {}
  for i, w in ipairs(list) do out[i] = w.data:tolist() end
  return out
end

describe('safetensors', function()
  local path = root .. '/all.safetensors'

  it('hold every dtype bit for bit', function()
    local list = {}
    for _, dtype in ipairs { 'float64', 'float32', 'bfloat16', 'float16', 'int64', 'int32', 'int16',
      'int8', 'uint8', 'bool' } do
      list[#list + 1] = { dtype, T.arange(6):reshape({ 2, 3 }):remainder(2):to(dtype) }
    end
    list[#list + 1] = { 'empty', T.zeros { 0, 3 } }
    list[#list + 1] = { 'transposed', T.arange(6, { dtype = 'float32' }):reshape({ 2, 3 }):t() }
    C.write_safetensors(path, list, { kind = 'test' })
    local file = C.read_safetensors(path)
    assert.equal('test', file:metadata().kind)
    assert.equal(#list, #file:names())
    for _, item in ipairs(list) do
      local back = file:read(item[1])
      assert.equal(item[2].dtype, back.dtype)
      assert.same(item[2].shape, back.shape)
      assert.same(item[2]:tolist(), back:tolist())
    end
    assert.is_nil(file:info 'none')
    assert.matches("has no tensor 'none'", refusal(file.read, file, 'none'))
  end)

  it('give slices', function()
    local x = T.arange(60, { dtype = 'float32' }):reshape { 3, 4, 5 }
    C.write_safetensors(path, { { 'x', x } })
    local slice = C.read_safetensors(path):read('x', { { 1, 3 }, { 0, 4 }, { 2, 4 } })
    assert.same({ 2, 4, 2 }, slice.shape)
    assert.same(x:slice(0, 1, 3):slice(2, 2, 4):tolist(), slice:tolist())
  end)

  it('refuse a truth value that is neither', function()
    local header = '{"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}}'
    header = header .. (' '):rep(-#header % 8)
    base.file_write(path, string.char(#header) .. ('\0'):rep(7) .. header .. '\1\0\7')
    local file = C.read_safetensors(path)
    assert.matches("tensor 'b' of .* holds 7 as a truth value", refusal(file.read, file, 'b'))
  end)

  it('refuse a pickle by another name', function()
    base.file_write(path, 'PK\3\4' .. ('\0'):rep(100))
    assert.matches('is not a valid safetensors file', refusal(C.read_safetensors, path))
  end)
end)

describe('a checkpoint', function()
  it('comes back exactly', function()
    local dir = fresh()
    local state = { best = 1 / 3, tiny = 5e-324, big = 1.7976931348623157e308, n = 2 ^ 53 - 1,
      none = math.huge, minus = -math.huge, name = 'a"\n€', on = true, list = { 1, 0.1, 'x' },
      nested = { deep = { 0.1 + 0.2 } }, nothing = {} }
    local path = checkpoint.save(dir, contents(3, { state = state, epoch = 2 }))
    assert.equal(dir .. '/0002-0003', path)
    local target = weights(100)
    local saved = checkpoint.load('last', { save_dir = dir, weights = target })
    assert.same(state, saved.state)
    assert.equal(2, saved.epoch)
    assert.equal(3, saved.step)
    local expected = values(weights(3))
    expected[4] = values(weights(100))[4] -- not persistent
    assert.same(expected, values(target))
    assert.equal(2, #saved.optimizer)
    assert.equal('exp_avg', saved.optimizer[1].name)
    assert.equal('wte.weight', saved.optimizer[1].parameter)
    assert.same(moments()[2].data:tolist(), saved.optimizer[2].data:tolist())
    local nan = checkpoint.save(dir, contents(4, { state = { x = 0 / 0, z = -0.0 } }))
    local back = checkpoint.load(nan, {}).state
    assert.is_true(back.x ~= back.x)
    assert.equal(-math.huge, 1 / back.z)
  end)

  it('has a manifest that maps names to slices, and names tied ones', function()
    local path = checkpoint.save(fresh(), contents(1))
    local manifest = base.json_decode(base.file_read(path .. '/manifest.json'))
    assert.equal('nnscaler checkpoint', manifest.format)
    assert.equal(1, manifest.version)
    local first, last = manifest.tensors[1], manifest.tensors[#manifest.tensors]
    assert.equal('wte.weight', first.name)
    assert.same({ 3, 4 }, first.shape)
    assert.equal('float32', first.dtype)
    assert.equal('model.safetensors', first.slices[1].file)
    assert.same({ { 0, 3 }, { 0, 4 } }, first.slices[1].slice)
    assert.matches('^%x+$', first.slices[1].checksum)
    assert.equal('optimizer.safetensors', first.optimizer.exp_avg.slices[1].file)
    assert.equal('buffer', manifest.tensors[3].kind)
    assert.same({ name = 'lm_head.weight', alias = 'wte.weight' }, last)
    assert.equal(4, #manifest.tensors)
    -- A model that calls the tied weight by its other name finds it; it is stored once.
    assert.is_nil(C.read_safetensors(path .. '/model.safetensors'):info 'lm_head.weight')
    local opened = checkpoint.open(path)
    assert.same(opened:read('wte.weight'):tolist(), opened:read('lm_head.weight'):tolist())
    assert.same({ 2, 1 }, opened:read('wte.weight', { { 1, 3 }, { 2, 3 } }).shape)
  end)

  it('has the same bytes each time', function()
    local a = checkpoint.save(fresh(), contents(1))
    local b = checkpoint.save(fresh(), contents(1))
    for _, name in ipairs(base.list_folder(a)) do
      assert.equal(base.file_read(a .. '/' .. name), base.file_read(b .. '/' .. name))
    end
    assert.same({ 'manifest.json', 'model.safetensors', 'optimizer.safetensors', 'trainer.json' },
      base.list_folder(a))
  end)

  it('takes the place of one of the same step', function()
    local dir = fresh()
    checkpoint.save(dir, contents(1, { state = { run = 1 } }))
    checkpoint.save(dir, contents(1, { state = { run = 2 } }))
    assert.equal(2, checkpoint.load('last', { save_dir = dir }).state.run)
    assert.same({ '0000-0001', 'last' }, base.list_folder(dir))
  end)

  it('is kept while it is among the newest or pointed to', function()
    local dir = fresh()
    for step = 1, 6 do
      checkpoint.save(dir, contents(step, { keep = 2,
        pointers = step == 2 and { 'last', 'best' } or { 'last' } }))
    end
    assert.same({ '0000-0002', '0000-0005', '0000-0006', 'best', 'last' }, base.list_folder(dir))
    assert.equal(2, checkpoint.load('best', { save_dir = dir }).step)
    assert.equal(6, checkpoint.load(dir, {}).step)
    checkpoint.point(dir, 'best', '0000-0005')
    assert.equal(5, checkpoint.load(dir .. '/best', {}).step)
    local names = {}
    for i, item in ipairs(checkpoint.list(dir)) do names[i] = item.name end
    assert.same({ '0000-0002', '0000-0005', '0000-0006' }, names)
  end)

  it('is pointed to by copies where links are not wanted', function()
    local dir = fresh()
    local function save(step, copies)
      checkpoint.save(dir, contents(step, { copy_pointers = copies }))
      assert.equal(step, checkpoint.load('last', { save_dir = dir }).step)
      assert.same({ 'last' }, { unpack(base.list_folder(dir), step + 1) })
    end
    save(1, true)
    save(2, true)
    local where = C.real_path(dir)
    assert.equal(where .. '/last', checkpoint.resolve('last', dir))
    save(3, false) -- a link in the place of a copy
    assert.equal(where .. '/0000-0003', checkpoint.resolve('last', dir))
    save(4, true) -- and a copy in that of a link
    checkpoint.open(dir .. '/last'):check()
  end)
end)

describe('a snapshot', function()
  local function piece(value)
    return { file = 'model.safetensors', parameter = 'w', data = T.full({ 1000, 1000 }, value) }
  end

  it('is written while its tensors change', function()
    local dir, snapshot = fresh(), C.snapshot()
    base.make_folder(dir)
    snapshot:reserve { piece(0) }
    for value = 1, 3 do -- in the same memory each time
      local before = piece(value)
      local task = snapshot:write(dir, { before })
      snapshot:settle()
      before.data:zero_()
      local told = base.json_decode(task:result())
      assert.is_true(task:done())
      local file = C.read_safetensors(dir .. '/model.safetensors')
      assert.equal(file:checksum 'w', told[1].part.checksum)
      assert.is_true(file:read('w'):equal(T.full({ 1000, 1000 }, value)))
    end
  end)

  it('says what went wrong when it is asked', function()
    local task = C.snapshot():write(root .. '/nowhere', { piece(1) })
    local message, err = refusal(task.result, task)
    assert.matches("%[checkpoint.save%] cannot write '.*nowhere/model.safetensors'", message)
    assert.equal('state', err.kind)
  end)

  it('leaves nothing behind when nobody asks for it', function()
    local dir = fresh()
    local draft = C.draft(dir, 0, 1)
    local task = C.snapshot():write(draft:folder(), { piece(1) })
    task:result()
    task = draft:finish { save_dir = dir, pointers = { 'last' }, written = { '[{' } }
    assert.is_false((pcall(task.result, task)))
    assert.same({}, base.list_folder(dir))
  end)
end)

describe('a checkpoint that does not fit', function()
  local function attempt(change)
    local dir = fresh()
    local path = checkpoint.save(dir, contents(1))
    local target = weights(50)
    change(path, target)
    local before = values(target)
    local message, err = refusal(checkpoint.load, 'last', { save_dir = dir, weights = target })
    assert.same(before, values(target))
    assert.equal('state', err.kind)
    return message
  end

  local function rewrite(path, name, change)
    local file = path .. '/' .. name
    base.file_write(file, change(base.file_read(file)))
  end

  it('is named tensor by tensor in one error, and nothing is loaded', function()
    local message = attempt(function(_, target)
      target[1].data = T.zeros { 3, 5 }
      target[2].data = T.zeros { 5 }
      target[3].name = 'running_mean'
      target[3].data = T.zeros { 2 }
    end)
    assert.matches('cannot be loaded; nothing was changed:', message)
    assert.matches('wrong shape: wte.weight is float32%[3, 4%], the model has float32%[3, 5%]',
      message)
    assert.matches('wrong dtype: bias is float64%[5%], the model has float32%[5%]', message)
    assert.matches('missing tensor: running_mean float32%[2%]', message)
    assert.matches('extra tensor: running int64%[%]', message)
  end)

  it('is refused when a file is truncated', function()
    local message = attempt(function(path)
      rewrite(path, 'model.safetensors', function(b) return b:sub(1, -5) end)
    end)
    assert.matches("model.safetensors' is not a valid safetensors file: .*the file is truncated",
      message)
    message = attempt(function(path)
      rewrite(path, 'optimizer.safetensors', function(b) return b:sub(1, 5) end)
    end)
    assert.matches('it has 5 bytes; expected at least 8', message)
  end)

  it('is refused when a bit has changed', function()
    local message = attempt(function(path)
      rewrite(path, 'optimizer.safetensors', function(b)
        return b:sub(1, -2) .. string.char((b:byte(-1) + 1) % 256)
      end)
    end)
    assert.matches("damaged: 'wte.weight/exp_avg_sq' in 'optimizer.safetensors'", message)
    message = attempt(function(path)
      rewrite(path, 'trainer.json', function(b) return (b:gsub('1.5', '1.6')) end)
    end)
    assert.matches("trainer.json' is damaged", message)
  end)

  it('is refused when a file is not there or not its own', function()
    assert.matches("cannot read '.*model.safetensors'", attempt(function(path)
      os.remove(path .. '/model.safetensors')
    end))
    local message = attempt(function(path)
      C.write_safetensors(path .. '/model.safetensors', {
        { 'wte.weight', T.zeros({ 3, 4 }, { dtype = 'float64' }) }, { 'bias', T.zeros { 5 } } })
    end)
    assert.matches("'wte.weight' in 'model.safetensors' is float64%[3, 4%], the manifest says "
      .. 'float32%[3, 4%]', message)
    assert.matches("missing in 'model.safetensors': running", message)
  end)

  it('is refused when its manifest is not one, or newer', function()
    assert.matches('is not a manifest of a checkpoint', attempt(function(path)
      base.file_write(path .. '/manifest.json', '{')
    end))
    assert.matches('has version 3; this program reads up to 2', attempt(function(path)
      rewrite(path, 'manifest.json', function(b)
        return (b:gsub('"version": 1', '"version": 3'))
      end)
    end))
  end)
end)

describe('finding a checkpoint', function()
  it('says when there is none', function()
    local dir = fresh()
    assert.matches("there is no checkpoint 'last' in '" .. dir .. "'",
      refusal(checkpoint.load, 'last', { save_dir = dir }))
    checkpoint.save(dir, contents(1))
    assert.matches("there is no checkpoint 'best' in '.*'; the newest is 0000%-0001",
      refusal(checkpoint.load, 'best', { save_dir = dir }))
    assert.matches("there is no checkpoint 'last' in '/nowhere/x'",
      refusal(checkpoint.load, '/nowhere/x', {}))
  end)

  it('never takes a torn one', function()
    local dir = fresh()
    checkpoint.save(dir, contents(1))
    base.make_folder(dir .. '/0000-0002')
    base.make_folder(dir .. '/.writing-1-0000-0003')
    base.file_write(dir .. '/.writing-1-0000-0003/manifest.json', '{}')
    assert.equal(1, #checkpoint.list(dir))
    os.remove(dir .. '/last')
    assert.equal(1, checkpoint.load('last', { save_dir = dir }).step)
    checkpoint.point(dir, 'last', '0000-0002')
    assert.equal(1, checkpoint.load('last', { save_dir = dir }).step)
  end)
end)

describe('the state', function()
  it('refuses what JSON cannot hold, with its place', function()
    local dir = fresh()
    local function save(state)
      return refusal(checkpoint.save, dir, contents(1, { state = state }))
    end
    assert.matches('state.a.b is a function', save { a = { b = print } })
    assert.matches('state.list has the key x beside 1 list items', save { list = { 1, x = 2 } })
    assert.equal(nil, base.file_exists(dir))
  end)

  it('refuses tensors that cannot be named', function()
    local dir = fresh()
    assert.matches("state 'exp_avg' is of 'none', which is not a saved tensor", refusal(
      checkpoint.save, dir, contents(1, { optimizer = { { parameter = 'none', name = 'exp_avg',
        data = T.zeros { 1 } } } })))
    assert.matches("'x' is tied to 'none', which is not a saved tensor", refusal(checkpoint.save,
      dir, contents(1, { aliases = { { 'x', 'none' } } })))
    assert.same({}, base.list_folder(dir))
  end)
end)

-- A program of its own, so that it can be stopped and limited from outside.
local function child(name, text)
  local path = root .. '/' .. name .. '.lua'
  base.file_write(path, text)
  return path
end

local function shell(command)
  local pipe = io.popen('(' .. command .. ') 2>&1; echo "exit $?"')
  local out = pipe:read '*a'
  pipe:close()
  return out
end

describe('a save that fails', function()
  local binary = C.real_path '/proc/self/exe'

  it('on a full disk leaves the older checkpoint and says so', function()
    local dir = fresh()
    local script = child('full', ([[
      local T = require 'nnscaler.tensor'
      local checkpoint = require 'nnscaler.checkpoint'
      local dir = '%s'
      local function save(step, size)
        return checkpoint.save(dir, { epoch = 0, step = step,
          weights = { { name = 'w', data = T.zeros { size } } } })
      end
      save(1, 10)
      local ok, err = pcall(save, 2, 1e6)
      print(ok, err)
    ]]):format(dir))
    -- A limit on the size of files stands in for a full disk: writes fail in the same way.
    local out = shell(("trap '' XFSZ; ulimit -f 100; '%s' '%s'"):format(binary, script))
    assert.matches("^false.*%[checkpoint.save%] cannot write '.*model.safetensors': File too large",
      out)
    assert.matches('the checkpoints before it are whole; the newest is ' .. dir
      .. '/0000%-0001', out)
    assert.equal(1, checkpoint.load('last', { save_dir = dir }).step)
    assert.same({ '0000-0001', 'last' }, base.list_folder(dir))
  end)

  it('because the process was killed never leaves a torn checkpoint', function()
    local dir = fresh()
    local script = child('killed', ([[
      local T = require 'nnscaler.tensor'
      local checkpoint = require 'nnscaler.checkpoint'
      local step = 0
      if #checkpoint.list '%s' > 0 then
        step = checkpoint.load('last', { save_dir = '%s' }).step
      end
      local first = step + 1
      while true do
        step = step + 1
        checkpoint.save('%s', { epoch = 0, step = step, keep = 1, state = { step = step },
          weights = { { name = 'w', data = T.full({ 300 }, step) } } })
        if step == first then print 'ready' end
      end
    ]]):format(dir, dir, dir))
    for round = 1, tonumber(os.getenv 'NNSCALER_TEST_KILLS' or 8) do
      shell(("'%s' '%s' > '%s/log' & pid=$!; until grep -q ready '%s/log'; do sleep 0.01; done; "
        .. 'sleep 0.0%d; kill -9 $pid; wait $pid'):format(binary, script, root, root,
        round * 7 % 10))
      local target = { { name = 'w', data = T.zeros { 300 } } }
      local saved = checkpoint.load('last', { save_dir = dir, weights = target })
      assert.equal(saved.step, saved.state.step)
      assert.equal(saved.step, target[1].data:amin():item())
      assert.equal(saved.step, target[1].data:amax():item())
    end
  end)
end)
