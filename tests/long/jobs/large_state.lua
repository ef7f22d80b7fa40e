--- A job whose states are 1.1 GB: it tells of a save, the first or a later one, or of loading, how
--- far resident memory rose above what it was, how long training waited, and how long steps took.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local nnscaler = require 'nnscaler'

local p = nnscaler.params {
  out = { '', 'file for what was measured' },
  save = { 1, 'the save that is measured' },
}
local kWidth, kLayers, kEvery = 3072, 10, 12
local kSave = kEvery * p.save

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
local from, began
local steps = {}

local function begin()
  reset_high_water()
  from, began = memory 'VmRSS', base.clock()
end

local function finish()
  told.base, told.peak, told.seconds = from, memory 'VmHWM' - from, base.clock() - began
end

local function write() base.file_write(p.out, base.json_encode(told)) end

local function mean(first, last)
  local sum = 0
  for i = first, last do sum = sum + steps[i] end
  return sum / (last - first + 1)
end

return {
  model = { type = 'mlp', args = { sizes = sizes } },
  forward_args = function(sample) return sample.x, sample.y end,
  dataset = { type = function() return data end },
  micro_batch_size = 64, max_train_steps = kSave + kEvery, enable_progress_bar = false,
  optimizer = { type = 'adamw', args = { lr = 1e-5 } },
  checkpoint = { every_n_train_steps = kEvery, keep_last_n_checkpoints = 1 },
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
    on_step_end = function(trainer, step, metrics)
      steps[step] = metrics.step_s
      if step == kSave + 1 then
        finish()
        told.seconds = trainer.save_wait
      elseif step == kSave + kEvery then
        told.others = mean(kSave - kEvery + 3, kSave)
        told.beside = mean(kSave + 1, kSave + 10)
        write()
      end
    end,
  },
}
