-- A small job in which one rank fails as its parameters say. Before it does, it writes the time to
-- `folder`/fault.
local nnscaler = require 'nnscaler'
local comm = require 'nnscaler._C.comm'

local p = nnscaler.params {
  folder = { '', 'where the time of the fault is written' },
  fault = { 'kill', 'what happens', choices = { 'none', 'kill', 'stop', 'lua', 'cpp', 'exit',
    'sleep' } },
  where = { 'forward', 'when', choices = { 'forward', 'collective', 'save', 'long', 'setup',
    'policy', 'data', 'hook' } },
  who = { 1, 'rank that fails' }, at = { 3, 'step in which it does' },
  seconds = { 20, 'of a long computation' },
}

local rank = nnscaler.rank()
local step, pids = 0, {}

local function shell(command, ...) os.execute(command:format(...)) end

-- A process that outlives its rank must not hold the pipe of who reads what it says.
local quiet = 'exec >/dev/null 2>&1; '

local function note() shell('date +%%s.%%N > %s/fault', p.folder) end

local signals = { kill = 'KILL', stop = 'STOP' }

local faults = {
  none = function() end,
  kill = function() shell('kill -KILL %d', pids[rank + 1]) end,
  stop = function() shell('kill -STOP %d', pids[rank + 1]) end,
  lua = function() error 'boom in Lua' end,
  cpp = function()
    local x = nnscaler.tensor.zeros { 2, 3 }
    return x:matmul(x)
  end,
  exit = function() os.exit(0) end,
  sleep = function() shell(quiet .. 'sleep %d', p.seconds) end,
}

local function mine(where) return p.where == where and rank == p.who and step == p.at end

-- Fails in a part of the run that is not a step: in every call, or in that of the step.
local function fail_in(where, always)
  if p.where ~= where or rank ~= p.who or not (always or step == p.at) then return end
  note()
  faults[p.fault]()
end

local samples = nnscaler.data.random_samples { size = 64, width = 8, classes = 4 }

-- Every rank learns the process numbers of all.
local function meet()
  local all = {}
  for r = 0, nnscaler.world_size() - 1 do all[r + 1] = r end
  local pipe = io.popen 'echo $PPID'
  local pid = pipe:read '*l'
  pipe:close()
  for r, text in ipairs(comm.current():group(all):exchange(pid)) do pids[r] = tonumber(text) end
end

return {
  name = 'fault',
  model = function()
    fail_in('setup', true)
    return require 'nnscaler.models.mlp' { sizes = { 8, 4 } }
  end,
  dataset = {
    len = function() return samples:len() end,
    get = function(_, i)
      fail_in 'data'
      return samples:get(i)
    end,
  },
  pas_policy = function(graph)
    fail_in('policy', true)
    graph:replicate_rest()
  end,
  compute_config = { plan_ngpus = 1 },
  optimizer = { type = 'sgd', args = { lr = 0.1 } },
  micro_batch_size = 2, max_train_steps = 5, threads = 1, enable_progress_bar = false,
  gen_savedir = p.folder .. '/gen',
  checkpoint = { save_dir = p.folder .. '/checkpoints', every_n_train_steps = 1 },
  forward_args = function(sample)
    if mine 'forward' then
      note()
      faults[p.fault]()
    elseif mine 'long' then -- stopped from outside after a while
      shell(quiet .. '(sleep 2; date +%%s.%%N > %s/fault; kill -%s %d) & sleep %d', p.folder,
        signals[p.fault], pids[rank + 1], p.seconds)
    elseif p.where == 'collective' and step == p.at and rank == p.who and not signals[p.fault] then
      -- By then the others are in the all-reduce that waits for this rank.
      shell 'sleep 1'
      note()
      faults[p.fault]()
    elseif p.where == 'collective' and step == p.at and signals[p.fault]
      and rank == (p.who + 1) % nnscaler.world_size() then
      -- By then the other is in the all-reduce that waits for this rank.
      shell 'sleep 1'
      note()
      shell(quiet .. 'kill -%s %d; sleep 30', signals[p.fault], pids[p.who + 1])
    end
    return sample
  end,
  hook = {
    on_train_start = meet,
    on_step_start = function(_, s)
      step = s
      fail_in 'hook'
    end,
    on_save_checkpoint = function()
      if mine 'save' then
        note()
        faults[p.fault]()
      end
    end,
  },
}
