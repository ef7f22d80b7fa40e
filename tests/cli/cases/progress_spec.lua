-- The progress bar on terminals of many widths, in tmux: one line, never wrapped, log lines whole.
local cases = require 'tests.cli.support.cases'
local progress = require 'nnscaler.trainer.progress'
local shell = require 'tests.cli.support.shell'

local case, remove = cases.new()
local missing = select(2, shell.run 'command -v tmux') ~= 0

-- A server of its own for each terminal, so that nothing of the user's is touched, and none is
-- asked that is about to end.
local servers = 0
local function tmux(command)
  return shell.run(("env -u TMUX tmux -S '%s/tmux%d' %s"):format(case.folder, servers, command))
end
teardown(function()
  if not missing then tmux 'kill-server' end
  remove()
end)

-- Steps of a tenth of a second, a log line and a line of print in some.
case.write('job.lua', [[
local nnscaler = require 'nnscaler'
local log = require('nnscaler.log').logger 'user'
return {
  model = { type = 'mlp', args = { sizes = { 4, 8, 2 } } },
  dataset = nnscaler.data.random_samples { size = 4000, width = 4, classes = 2 },
  micro_batch_size = 4, max_train_steps = 600, optimizer = 'sgd', threads = 1, gen_savedir = 'g',
  checkpoint = { no_save = true }, log_level = 'info',
  hook = { on_step_end = function(_, step)
    os.execute 'sleep 0.12'
    if step % 5 == 3 then log.info('said in step %d', step) end
    if step % 5 == 4 then print('printed in step ' .. step) end
  end },
}]])

local function screen()
  local lines = {}
  for line in (tmux 'capture-pane -p -J -t bar' .. '\n'):gmatch '([^\n]*)\n' do
    lines[#lines + 1] = (line:gsub('%s+$', ''))
  end
  while lines[#lines] == '' do lines[#lines] = nil end
  return lines
end

local function width_of(line) return select(2, line:gsub('[^\128-\191]', '')) end

-- Waits until the bar stands below at least `n` lines of the log.
local function wait_for(n, columns)
  local lines
  for _ = 1, 100 do
    lines = screen()
    local said = 0
    for _, line in ipairs(lines) do said = said + (line:find 'in step %d' and 1 or 0) end
    local bar = lines[#lines] or ''
    if said >= n and bar:find '^Epoch 0:' and width_of(bar) < columns then return lines end
    shell.run 'sleep 0.1'
  end
  error('no bar below the log:\n' .. table.concat(lines, '\n'))
end

-- One bar, the last line, within the width; what was said stands above it in lines of its own.
local function check(lines, columns)
  local text = table.concat(lines, '\n')
  for i, line in ipairs(lines) do
    if i < #lines then
      assert.is_nil(line:find('█', 1, true) or line:find('░', 1, true), text)
      if line:find 'printed' then assert.matches('^printed in step %d+$', line) end
      if line:find 'said in' then
        assert.matches('^%d+%-%d+%-%d+ [%d:]+ | INFO | user | said in step %d+$', line)
      end
    end
  end
  assert.is_true(width_of(lines[#lines]) <= columns - 1, text)
end

describe('the progress bar', function()
  if missing then
    it('fits the terminal', function() pending 'no tmux here (Debian: tmux)' end)
    return
  end

  local function start(columns)
    tmux 'kill-server'
    servers = servers + 1
    local said, code = tmux(("-f /dev/null new-session -d -s bar -x %d -y 30 -c '%s' "
      .. "\"'%s' run job.lua\""):format(columns, case.folder, shell.binary))
    assert.equal(0, code, said)
  end

  for _, columns in ipairs { 40, 80, 120, 200 } do
    it(('fits %d columns and keeps log lines whole'):format(columns), function()
      start(columns)
      check(wait_for(3, columns), columns)
      shell.run 'sleep 0.7'
      check(wait_for(3, columns), columns)
    end)
  end

  it('fits again when the terminal becomes narrower, and wider', function()
    start(120)
    check(wait_for(2, 120), 120)
    for _, columns in ipairs { 60, 40, 100 } do
      tmux(('resize-window -t bar -x %d -y 30'):format(columns))
      shell.run 'sleep 0.6'
      check(wait_for(2, columns), columns)
    end
  end)
end)

describe('the line of a progress bar', function()
  it('never takes all columns, and leaves out the least important first', function()
    local parts = { '12/100', '3.1/s 0:28 left', 'train_loss=1.234', 'lr=0.001', 'gnorm=0.5' }
    local before
    for columns = 1, 200 do
      local text, width = progress.line('Epoch 0:  12% ', 0.12, parts, columns)
      assert.equal(width, width_of(text))
      assert.is_true(width <= math.max(0, columns - 1))
      if before then assert.is_true(width >= before) end
      before = width
    end
    assert.equal('Epoch 0:  12% ██░░░░░░░░░░░░░░░░ 12/100',
      (progress.line('Epoch 0:  12% ', 0.12, parts, 40)))
    assert.matches('gnorm=0.5$', (progress.line('Epoch 0:  12% ', 0.12, parts, 200)))
  end)

  it('is drawn on terminals only', function()
    local said = case.run 'job.lua max_train_steps=2'
    assert.is_nil(said:find('█', 1, true))
  end)
end)
