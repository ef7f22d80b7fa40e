-- States on the host (compute_config.zero_offload): the bits of a run without, less memory of the
-- device, and hosts without room. The CPU is the device here; the host's memory is counted apart.
local T = require 'nnscaler.tensor'
local checkpoint = require 'nnscaler.checkpoint'
local door = require 'nnscaler._C.tensor'
local offload = require 'nnscaler.trainer.offload'
local runs = require 'tests.lua.support.runs'

local folder = runs.folder()
teardown(function() runs.remove(folder) end)

local data = {
  len = function() return 64 end,
  get = function(_, i)
    return { x = (T.arange(16) * (i + 1)):to('float32'):sin(), y = T.full({}, i % 8,
      { dtype = 'int64' }) }
  end,
}

-- Live bytes of the host's memory and of the device's.
local function memory()
  collectgarbage()
  collectgarbage()
  local host, device = door.host_memory(), door.memory()
  return host, device
end

-- Trains; returns loss and norm of each step, and the memory that the last one leaves.
local function train(how, changes)
  local seen, host, device = {}, memory()
  local job = {
    model = { type = 'mlp', args = { sizes = { 16, 32, 8 } } },
    forward_args = function(sample) return sample.x, sample.y end,
    dataset = { type = function() return data end }, eager = false, seed = 3,
    micro_batch_size = 4, grad_accumulation_steps = 2, max_train_steps = 6,
    optimizer = { type = 'adamw', args = { lr = 1e-2 }, clip_gnorm = 1 },
    compute_config = { zero_offload = how }, gen_savedir = folder .. '/gen',
    hook = {
      on_step_end = function(_, step, metrics)
        seen[step] = { metrics.train_loss, metrics.gnorm }
        local host_now, device_now = memory()
        seen.host, seen.device = host_now - host, device_now - device
      end,
    },
  }
  for key, value in next, changes or {} do job[key] = value end
  local trainer = runs.trainer(job)
  seen.result = trainer:run()
  seen.weights = trainer.store:weights()
  seen.lines = trainer.lines
  return seen
end

local function same(want, got)
  for step = 1, 6 do assert.same(want[step], got[step]) end
  for i, weight in ipairs(want.weights) do
    assert.is_true(weight.data:equal(got.weights[i].data), weight.name)
  end
end

local parameters = 16 * 32 + 32 + 32 * 8 + 8

describe('states on the host', function()
  local matrices = { type = 'muon', args = { lr = 1e-2, groups = {
    { match = '*bias', type = 'adamw', lr = 1e-2 } } } }
  local kinds = {
    adamw = { type = 'adamw', args = { lr = 1e-2 } },
    ['sgd with momentum'] = { type = 'sgd', args = { lr = 1e-2, momentum = 0.9 } },
    lion = { type = 'lion', args = { lr = 1e-3 } },
    adafactor = { type = 'adafactor', args = { lr = 1e-2 } },
    ['muon and adamw'] = matrices,
  }
  for _, name in ipairs(require('nnscaler.sorted').sorted_keys(kinds)) do
    it('give the bits of ' .. name .. ' without', function()
      local change = { optimizer = kinds[name] }
      local want = train('none', change)
      same(want, train('optimizer', change))
      same(want, train('all', change))
    end)
  end

  it('take as much of its memory as they have bytes, and none of the device', function()
    local none, slots, all = train 'none', train 'optimizer', train 'all'
    assert.equal(0, none.host)
    assert.equal(8 * parameters, slots.host)
    assert.equal(8 * parameters, none.device - slots.device)
    assert.equal(12 * parameters, all.host)
    assert.equal(12 * parameters, none.device - all.device)
  end)

  it('have masters among them', function()
    local change = { precision = 'bf16' }
    local want, got = train('none', change), train('all', change)
    same(want, got)
    assert.equal(16 * parameters, got.host) -- a master, two moments, a gradient, all float32
  end)

  it('are saved, and a run goes on from them', function()
    local function save(name, more)
      local options = { save_dir = folder .. '/' .. name, every_n_train_steps = 3 }
      options.resume_from = more
      return { checkpoint = options }
    end
    local want = train('none', save 'device')
    same(want, train('all', save 'host'))
    local a = checkpoint.open(checkpoint.resolve('last', folder .. '/device'))
    local b = checkpoint.open(checkpoint.resolve('last', folder .. '/host'))
    for i, entry in ipairs(a:optimizer()) do
      assert.is_true(entry.data:equal(b:optimizer()[i].data), entry.name)
    end
    local again = train('optimizer', save('host', folder .. '/device/0000-0003'))
    for step = 4, 6 do assert.same(want[step], again[step]) end
    assert.equal(8 * parameters, again.host)
  end)

  it('need a program of the whole model', function()
    local ok, err = pcall(train, 'optimizer', { eager = true })
    assert.is_false(ok)
    assert.matches('%[trainer.offload%] compute_config.zero_offload beside eager=true; expected a '
      .. 'program of the whole model', tostring(err))
  end)

  it('are refused where a host has no room for them', function()
    local gb = 2 ^ 30
    local function told(...)
      local list = {}
      for i, free in ipairs { ... } do
        list[i] = { host = i <= 2 and 'a' or 'b', name = i <= 2 and 'left' or 'right',
          bytes = 3 * gb, free = free * gb }
      end
      return list
    end
    offload.check_room(told(6.5, 6.5, 3.5))
    local ok, err = pcall(offload.check_room, told(6.5, 5.5, 3.5))
    assert.is_false(ok)
    assert.matches("%[trainer.offload%] compute_config.zero_offload puts 6.0 GB of rank%(s%) 0, 1 "
      .. "on the host 'left', which has 5.5 GB free", tostring(err))
    ok, err = pcall(offload.check_room, told(6.5, 6.5, 2.5))
    assert.is_false(ok)
    assert.matches("of rank%(s%) 2 on the host 'right'", tostring(err))
  end)
end)
