--- What a trainer says and writes of several ranks: a profile of instructions, gradients that
--- differ, the rank of a loss that is no number, reductions, test data.
local base = require 'nnscaler._C.base'
local launchers = require 'tests.cli.support.launchers'
local shell = require 'tests.cli.support.shell'
local sorted = require 'nnscaler.sorted'
local training = require 'tests.cli.support.training'

local folder, remove = shell.folder()

-- Writes a recipe that changes the job of resume.lua; returns the command that trains it.
local function recipe(name, changes, more)
  local path = ('%s/%s.lua'):format(folder, name)
  base.file_write(path, ([[
    local job = dofile 'tests/cli/jobs/resume.lua'
    job.hook, job.max_train_steps, job.lr_scheduler = {}, 4, nil
    %s
    return job
  ]]):format(changes))
  return ('run %s checkpoint.no_save=true gen_savedir=%s/%s.gen --metrics %s/%s.jsonl %s'):format(
    path, folder, name, folder, name, more or '')
end

local function rows(name) return training.metrics(('%s/%s.jsonl'):format(folder, name)) end

describe('a trainer on several ranks', function()
  teardown(remove)

  it('times the instructions of a window on one clock', function()
    local file = folder .. '/trace/window.json'
    local said, code = launchers.run('nnscaler run -n', 2, recipe('profile', '',
      ('pas_policy=tp profile.file=%s profile.start=2 profile.steps=2'):format(file)))
    assert.equal(0, code, said)
    assert.matches('Profile of steps 2 to 3: ' .. file:gsub('%-', '%%-'), said)
    local kinds, ends, lines = {}, {}, {}
    for _, event in ipairs(base.json_decode(base.file_read(file)).traceEvents) do
      if event.ph == 'X' then
        local key = event.pid .. ' ' .. event.cat
        kinds[key] = (kinds[key] or 0) + 1
        assert.is_true(event.ts >= 0 and event.dur >= 0)
        if event.cat == 'communication' and event.name == 'all_reduce' then
          ends[event.pid] = ends[event.pid] or {}
          table.insert(ends[event.pid], { event.ts, event.ts + event.dur })
        end
        if event.args and event.args.line then lines[event.name] = event.args.line end
      else
        assert.equal('rank ' .. event.pid, event.args.name)
      end
    end
    for rank = 0, 1 do
      for _, kind in ipairs { 'compute', 'communication', 'waiting', 'phase', 'data' } do
        assert.is_true((kinds[rank .. ' ' .. kind] or 0) > 0, rank .. ' ' .. kind)
      end
    end
    -- A collective is one event on both ranks at one time: its parts overlap.
    assert.equal(#ends[0], #ends[1])
    for i, event in ipairs(ends[0]) do
      local other = ends[1][i]
      assert.is_true(event[1] <= other[2] and other[1] <= event[2], i)
    end
    -- Lines are those of the file that ran.
    local text, n = {}, 0
    for line in (base.file_read(folder .. '/profile.gen/Net/gencode1.lua') .. '\n')
      :gmatch '([^\n]*)\n' do
      n = n + 1
      text[n] = line
    end
    assert.matches('linear', text[lines.linear])
  end)

  it('names the weight and the ranks whose gradients differ', function()
    local spoil = [[
      job.hook.after_sync_grad = function(t)
        if t.rank == 1 and t.step == 2 then t.engine:grad 'down.bias':add_(1e-7) end
      end ]]
    local command = recipe('spoiled', spoil, 'pas_policy=dp comm.backend=local -n 2 ')
    local said, code = shell.nnscaler(command
      .. 'debug.check_gradient_sync_cross_devices=true')
    assert.equal(1, code, said)
    assert.matches("%[debug.gradient_sync%] step 3: the summed gradient of 'down.bias' differs "
      .. 'between ranks 0 and 1; expected equal bits', said)
    for _, policy in ipairs { 'dp', 'tp', 'fsdp' } do
      said, code = shell.nnscaler(recipe('sound', '', 'comm.backend=local -n 2 pas_policy='
        .. policy .. ' debug.check_gradient_sync_cross_devices=true'))
      assert.equal(0, code, said)
    end
  end)

  it('names the rank whose loss is no number', function()
    local said, code = shell.nnscaler(recipe('nan', [[
      job.hook.on_train_step_start = function(t, samples)
        if t.rank == 1 and t.step == 1 then samples[1].x:fill_(0 / 0) end
      end ]], 'pas_policy=dp comm.backend=local -n 2'))
    assert.equal(1, code, said)
    assert.matches('train_loss is nan at step 2 %(epoch 0%), from rank 1; expected a finite number',
      said)
  end)

  it('sums after backward where it is told so', function()
    local first
    for _, beside in ipairs { 'true', 'false' } do
      local said, code = shell.nnscaler(recipe('sums' .. beside, '', 'comm.backend=local -n 2 '
        .. 'compute_config.reducer_bucket_cap_mb=0.001 compute_config.use_async_reducer='
        .. beside))
      assert.equal(0, code, said)
      local losses = {}
      for i, row in ipairs(rows('sums' .. beside)) do losses[i] = row.train_loss end
      first = first or losses
      assert.same(first, losses)
    end
  end)

  it('may write the programs of all ranks and end', function()
    local said, code = shell.nnscaler(recipe('compiled', '', '-n 2 run_mode=compile pas_policy=tp'))
    assert.equal(0, code, said)
    for rank = 0, 1 do
      assert.equal('file', base.file_exists(('%s/compiled.gen/Net/gencode%d.lua'):format(folder,
        rank)))
    end
    assert.is_nil(said:find('Training', 1, true))
  end)

  it('changes the size of its steps under any policy', function()
    local changes = [[
      job.max_train_steps = 8
      job.global_batch_schedule = { { after_steps = 2, global_batch_size = 16 },
        { after_steps = 5, global_batch_size = 4 } } ]]
    local first
    for _, policy in ipairs { '', 'dp', 'pp', 'fsdp' } do
      local name = 'sizes' .. policy
      local said, code = shell.nnscaler(recipe(name, changes, 'precision=fp64 comm.backend=local '
        .. (policy ~= '' and '-n 2 pas_policy=' .. policy or '')))
      assert.equal(0, code, said)
      first = first or rows(name)
      local tokens = {}
      for i, row in ipairs(rows(name)) do
        tokens[i] = row.tokens
        assert.is_true(math.abs(row.train_loss / first[i].train_loss - 1) < 1e-10, name)
      end
      assert.same({ 8, 8, 16, 14, 16, 4, 4, 4 }, tokens) -- 46 samples an epoch
    end
  end)

  it('reduces over all of them, and tests once', function()
    local changes = [[
      local data = job.dataset.type()
      job.dataset = { type = function() return data end, train_args = {}, test_args = {} }
      job.optimizer.loss_reduction, job.optimizer.grad_reduction = 'sum', 'sum'
      job.optimizer.aggregate_outputs_fn = function(outputs) return { seen = #outputs } end
      job.hook.before_log_train_metrics = function(_, metrics, result)
        metrics.seen = result.aggregated.seen
      end ]]
    local first
    for name, more in sorted.sorted_pairs { dp = '-n 2 pas_policy=dp', one = '',
      pp = '-n 2 pas_policy=pp' } do
      local said, code = shell.nnscaler(recipe(name, changes, 'precision=fp64 '
        .. 'comm.backend=local ' .. more))
      assert.equal(0, code, said)
      local got = rows(name)
      first = first or got
      assert.equal(#first, #got)
      for i, row in ipairs(got) do
        for _, key in ipairs { 'train_loss', 'gnorm', 'test_loss' } do
          if first[i][key] then
            assert.is_true(math.abs(row[key] / first[i][key] - 1) < 1e-10, name .. ' ' .. key)
          end
        end
        if row.train_loss then assert.equal(4, row.seen) end
      end
      assert.is_truthy(got[#got].test_loss)
    end
  end)
end)
