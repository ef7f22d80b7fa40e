-- `nnscaler checkpoint inspect`, `merge` and `diff`: what they print and write.
local C = require 'nnscaler._C.checkpoint'
local T = require 'nnscaler.tensor'
local checkpoint = require 'nnscaler.checkpoint'
local command = require 'nnscaler.commands.checkpoint'

local dir = os.tmpname() .. '.d'
teardown(function() os.execute("rm -rf '" .. dir .. "'") end)

local function printed(opts, code)
  local lines, own = {}, print
  rawset(_G, 'print', function(text) lines[#lines + 1] = text end)
  local ok, result = pcall(command.run, opts)
  rawset(_G, 'print', own)
  if not ok then error(result, 0) end
  assert.equal(code or 0, result)
  return table.concat(lines, '\n')
end

describe('checkpoint inspect', function()
  local path = checkpoint.save(dir, {
    epoch = 1, step = 1200, state = { best_loss = 1.25, train_loss = 1.5 },
    weights = { { name = 'wte.weight', data = T.zeros { 1000, 64 } },
      { name = 'mean', data = T.zeros { 3 }, persistent = true } },
    optimizer = { { parameter = 'wte.weight', name = 'exp_avg', data = T.zeros { 1000, 64 } } },
    aliases = { { alias = 'head.weight', name = 'wte.weight' } },
  })

  it('shows tensors, sizes, step and losses', function()
    assert.equal(table.concat({
      C.real_path(path),
      'epoch 1, step 1200, train loss 1.5, best loss 1.25',
      'tensor       shape         dtype    elements       size',
      'wte.weight   [1000, 64]    float32    64,000  250.0 KiB  exp_avg',
      'mean         [3]           float32         3       12 B  buffer',
      'head.weight  = wte.weight',
      '2 tensors, 64,003 elements, 250.0 KiB; optimizer: 1 tensors, 250.0 KiB; all checksums are '
        .. 'right',
    }, '\n'), printed { action = 'inspect', checkpoint = dir })
  end)

  it('shows one file', function()
    local file = path .. '/optimizer.safetensors'
    assert.equal(file .. '\n' .. table.concat({
      'tensor              shape       dtype    elements       size',
      'wte.weight/exp_avg  [1000, 64]  float32    64,000  250.0 KiB',
      '1 tensors, 64,000 elements, 250.0 KiB',
    }, '\n'), printed { action = 'inspect', checkpoint = file })
  end)

  it('prints JSON', function()
    local text = printed { action = 'inspect', checkpoint = path, json = true }
    local back = require('nnscaler._C.base').json_decode(text)
    assert.equal(1200, back.manifest.step)
    assert.equal(1.25, back.state.best_loss)
  end)

  it('says what it cannot do', function()
    assert.error_matches(function() printed { action = 'split', checkpoint = path } end,
      "unknown action 'split'; expected inspect, merge, export, check or diff")
    assert.error_matches(function() printed { action = 'merge', checkpoint = path } end,
      'merge needs the folder to write')
    assert.error_matches(function() printed { action = 'diff', checkpoint = path } end,
      'diff needs two checkpoints')
    assert.error_matches(function() printed { action = 'inspect', checkpoint = '/nowhere' } end,
      "there is no checkpoint 'last' in '/nowhere'")
  end)
end)

describe('checkpoints of several ranks', function()
  -- As two ranks write it: rows of the weight, and columns of its moment.
  local x = T.arange(12, { dtype = 'float32' }):reshape { 3, 4 }
  local function save(folder, w, moment, name)
    local draft = C.draft(folder, 0, 4)
    local function piece(r, what, data, slice)
      return { file = ('%s-%05d-of-00002.safetensors'):format(what, r), parameter = name or 'w',
        state = what == 'optimizer' and 'exp_avg' or '', data = data, shape = { 3, 4 },
        slice = slice }
    end
    local written = {
      C.write_pieces(draft:folder(), { piece(1, 'model', w:slice(0, 0, 1), { { 0, 1 }, { 0, 4 } }),
        piece(1, 'optimizer', moment:slice(1, 0, 2), { { 0, 3 }, { 0, 2 } }) }),
      C.write_pieces(draft:folder(), { piece(2, 'model', w:slice(0, 1, 3), { { 1, 3 }, { 0, 4 } }),
        piece(2, 'optimizer', moment:slice(1, 2, 4), { { 0, 3 }, { 2, 4 } }) }),
    }
    local finish = draft:finish { save_dir = folder, epoch = 0, step = 4, pointers = { 'last' },
      state = '{"job": {"file": "job.lua"}}', written = written, order = { name or 'w' } }
    return finish:result()
  end
  local path = save(dir .. '/two', x, x:mul(2))

  it('say how many slices a tensor has, and the job', function()
    local said = printed { action = 'inspect', checkpoint = path }
    assert.matches('\njob job.lua\n', said)
    assert.matches('w +%[3, 4%] +float32 +12 +48 B +2 slices; exp_avg', said)
  end)

  it('give any range of a tensor', function()
    local saved = checkpoint.open(path)
    saved:check()
    assert.same(x:slice(0, 0, 2):slice(1, 1, 3):tolist(), saved:read('w', { { 0, 2 }, { 1, 3 } })
      :tolist())
    assert.same(x:mul(2):tolist(), saved:read('w', nil, 'exp_avg'):tolist())
  end)

  it('become whole by merge', function()
    local whole = dir .. '/merged/0000-0004'
    assert.equal(whole .. ': 1 tensors, optimizer: 1 tensors',
      printed { action = 'merge', checkpoint = path, folder = dir .. '/merged' })
    assert.same(x:tolist(), C.read_safetensors(whole .. '/model.safetensors'):read('w'):tolist())
    assert.equal('job.lua', checkpoint.open(whole).state.job.file)
    assert.equal('the same: 2 tensors, bit for bit',
      printed { action = 'diff', checkpoint = path, folder = whole })
  end)

  it('are told apart by the first tensor that differs, and by how much', function()
    local moment = x:mul(2)
    moment:slice(0, 2, 3):add_(0.5)
    local other = save(dir .. '/other', x, moment)
    assert.equal('first difference: w/exp_avg: 4 of 12 elements differ, by at most 0.5 (of at '
      .. 'most 22)\n1 tensors differ', printed({ action = 'diff', checkpoint = path,
      folder = other }, 1))
    local named = save(dir .. '/named', x, moment, 'v')
    assert.matches('^first difference: w: only in .*two/0000%-0004\n4 tensors differ',
      printed({ action = 'diff', checkpoint = path, folder = named }, 1))
  end)

  it('are refused where slices leave a part out', function()
    local torn = save(dir .. '/torn', x, x:mul(2))
    local base = require 'nnscaler._C.base'
    local text = base.file_read(torn .. '/manifest.json')
    local manifest = base.json_decode(text)
    table.remove(manifest.tensors[1].slices, 1)
    base.file_write(torn .. '/manifest.json', base.json_encode(manifest))
    assert.error_matches(function() checkpoint.open(torn):check() end,
      "'w' in 'manifest.json' has slices that leave a part of it out")
  end)
end)
