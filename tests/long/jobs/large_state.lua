--- A job whose states are 1.1 GB: it tells of its first save, or of loading, how far resident
--- memory rose above what it was, how long training waited, and how long steps took.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local nnscaler = require 'nnscaler'

local p = nnscaler.params { out = { '', 'file for what was measured' } }
local kWidth, kLayers, kSave = 3072, 10, 12

-- Of this process, in bytes.
local function memory(field)
  for line in io.lines '/proc/self/status' do
    local kb = line:match('^' .. field .. ':%s+(%d+) kB')
    if kb then return 1024 * tonumber(kb) end
  end
end

local function reset_high_water()
  local file = assert(io.open('/proc/self/clear_refs', 'w'))
  file:write '5'
  file:close()
end

local sizes = {}
for i = 1, kLayers + 1 do sizes[i] = kWidth end

local data = {
  len = function() return 1000 end,
  get = function(_, i)
    return { x = T.full({ kWidth }, i / 1000), y = T.full({}, i, { dtype = 'int64' }) }
  end,
}

local told = { tensor = 4 * kWidth * kWidth,
  state = 3 * kLayers * (4 * kWidth * kWidth + 4 * kWidth) }
local from, began, started, measured
local steps = {}

local function begin()
  reset_high_water()
  from, began = memory 'VmRSS', base.clock()
end

local function finish()
  told.peak, told.seconds, measured = memory 'VmHWM' - from, base.clock() - began, true
end

local function write() base.file_write(p.out, base.json_encode(told)) end

-- Middle of the times of some steps.
local function middle(first, last)
  local list = {}
  for i = first, last do list[#list + 1] = steps[i] end
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

return {
  model = { type = 'mlp', args = { sizes = sizes } },
  forward_args = function(sample) return sample.x, sample.y end,
  dataset = { type = function() return data end },
  micro_batch_size = 1, max_train_steps = 2 * kSave, enable_progress_bar = false,
  optimizer = { type = 'adamw', args = { lr = 1e-5 } },
  checkpoint = { every_n_train_steps = kSave, keep_last_n_checkpoints = 1 },
  init_env_fn = function()
    T.zeros { 1 }
    begin()
  end,
  hook = {
    after_load_checkpoint = function()
      finish()
      write()
      os.exit(0, true)
    end,
    on_save_checkpoint = function(trainer)
      if trainer.step == kSave then begin() end
    end,
    on_step_start = function(trainer)
      if trainer.step == kSave and not measured then finish() end
      started = base.clock()
    end,
    on_step_end = function(_, step)
      steps[step] = base.clock() - started
      if step < 2 * kSave then return end
      told.others, told.beside = middle(2, kSave), middle(kSave + 1, kSave + 10)
      write()
    end,
  },
}
