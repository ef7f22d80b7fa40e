--- Runs whose evaluation, samples or buffers once met a plan that could not hold them, as people
--- wrote them: the losses of one device on several ranks.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'
local sorted_pairs = require('nnscaler.sorted').sorted_pairs

local folder, remove = shell.folder()

local head = [[
local nnscaler = require 'nnscaler'
local nn, T, F = nnscaler.nn, nnscaler.tensor, nnscaler.functional
local Net = nn.class 'Net'
]]

local jobs = {}

-- Evaluation scales an early activation; training has an operator of the same kind at its end.
jobs.pp_eval_deadlock = head .. [[
function Net:init()
  self.l = nn.ModuleList()
  for _ = 1, 4 do self.l:append(nn.Linear(4, 4)) end
end
function Net:forward(s)
  local x = self.l[1](s.x)
  if not self.training then x = x * 0.5 end
  x = self.l[4](self.l[3](self.l[2](x)))
  local loss = x:square():mean()
  if self.training then loss = loss * 0.3 end
  return loss
end
local function data(a)
  return { len = function() return a.n end,
    get = function(_, i) return { x = T.full({ 4 }, i / a.n) } end }
end
return {
  model = function() return Net() end,
  dataset = { type = data, train_args = { n = 8 }, val_args = { n = 4 } },
  micro_batch_size = 4, max_train_steps = 2, threads = 1, precision = 'fp64', optimizer = 'sgd',
  checkpoint = { no_save = true },
}]]

-- Texts of different lengths.
jobs.other_graph_for_other_input = head .. [[
function Net:init()
  self.e, self.i = nn.Embedding(7, 4), nn.Linear(4, 4)
  self.h, self.o = nn.Linear(4, 4), nn.Linear(4, 2)
end
function Net:forward(s)
  local x = self.i(self.e(s.ids))
  local h = x:new_zeros { x.shape[1], 4 }
  for t = 0, x.shape[2] - 1 do h = (x:select(1, t) + self.h(h)):tanh() end
  return F.cross_entropy(self.o(h), s.y)
end
return {
  model = function() return Net() end,
  dataset = { len = function() return 24 end, get = function(_, i)
    return { ids = (T.arange(3 + i % 4) * (i + 1) % 7):to 'int64',
      y = T.tensor(i % 2, { dtype = 'int64' }) }
  end },
  micro_batch_size = 1, global_batch_size = 4, max_train_steps = 4, precision = 'fp64', threads = 1,
  optimizer = { type = 'sgd', args = { lr = 0.1 } }, checkpoint = { no_save = true },
}]]

-- A running average in the last stage.
local function averaged(micro)
  return head .. ([[
function Net:init()
  self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)
  self:register_buffer('mean', function() return T.zeros { 2 } end)
end
function Net:forward(x)
  local y = self.b(self.a(x):tanh())
  if self.training then self.mean:mul_(0.9):add_(y:detach():mean(0) * 0.1) end
  return y:square():mean()
end
return {
  model = function() return Net() end,
  dataset = { len = function() return 8 end, get = function(_, i) return T.full({ 3 }, i / 8) end },
  micro_batch_size = %d, global_batch_size = 4, max_train_steps = 2, optimizer = 'sgd',
  precision = 'fp64', threads = 1, checkpoint = { no_save = true },
}]]):format(micro)
end
jobs.pp_running_buffer, jobs.dp_running_average = averaged(4), averaged(2)

for name, text in sorted_pairs(jobs) do
  base.file_write(('%s/%s.lua'):format(folder, name), text, 'test')
end

-- Losses of training, then of evaluation.
local function losses(name, options)
  local metrics = folder .. '/metrics.jsonl'
  os.remove(metrics)
  local said, code = shell.nnscaler(('run %s/%s.lua gen_savedir=%s/gen --metrics %s %s'):format(
    folder, name, folder, metrics, options), 'timeout 100')
  assert.equal(0, code, said)
  local out = {}
  for line in base.file_read(metrics):gmatch '[^\n]+' do
    local row = base.json_decode(line)
    out[#out + 1] = row.train_loss
    out[#out + 1] = row.val_loss
  end
  return out, said
end

-- Of one device.
local references = {}
local function reference(name, more)
  references[name .. more] = references[name .. more] or losses(name, more)
  return references[name .. more]
end

local cases = {
  { 'pp_eval_deadlock', { 'pp', 'hybrid',
    'pp pas_config.pipeline_scheduler=1f1b_interleaved pas_config.pipeline_nmicros=2' } },
  { 'other_graph_for_other_input', { 'dp', 'tp', 'pp' } },
  { 'pp_running_buffer', { 'pp', 'pp pas_config.pipeline_scheduler=zb_h1', 'hybrid' } },
  { 'dp_running_average', { 'dp', 'fsdp', 'data' } },
}
-- Known numbers of one device.
local known = { pp_eval_deadlock = 0.16329777172100526, pp_running_buffer = 0.27205953856804688,
  other_graph_for_other_input = 0.8083031855023320 }

describe('on two ranks', function()
  teardown(remove)

  for _, case in ipairs(cases) do
    for _, policy in ipairs(case[2]) do
      it(('%s trains under %s as on one device'):format(case[1], policy), function()
        -- Two micro-batches a step want as many on one device.
        local more = policy:find 'nmicros=2' and 'grad_accumulation_steps=2' or ''
        local want = reference(case[1], more)
        local got, said = losses(case[1], more .. ' -n 2 comm.backend=local pas_policy=' .. policy)
        if known[case[1]] and more == '' then
          assert.is_true(math.abs(want[#want] / known[case[1]] - 1) < 1e-12, want[#want])
        end
        assert.equal(#want, #got, said)
        for i, x in ipairs(want) do
          assert.is_true(math.abs(got[i] / x - 1) < 1e-11, ('%d: %.17g'):format(i, got[i]))
        end
      end)
    end
  end

  for _, policy in ipairs { 'tp', 'dp', 'data' } do
    it('other_graph_for_other_input: a mask or none under ' .. policy, function()
      local path = folder .. '/mask.lua'
      base.file_write(path, head .. ([[
nnscaler.init { ranks = 2 }
function Net:init() self.fc = nn.Linear(4, 4) end
function Net:forward(x, mask)
  local y = self.fc(x)
  if mask then y = y:masked_fill(mask, 0) end
  return y:relu()
end
local x, mask = T.ones { 2, 4 }, T.eye(4, { dtype = 'bool' }):narrow(0, 0, 2)
local plain = Net():materialize(1)
local block = nnscaler.parallelize(Net(), { x = x, mask = mask }, '%s', { plan_ngpus = %d },
  { gen_savedir = '' }):materialize(1)
for _ = 1, 2 do
  assert((block(x, mask) - plain(x, mask)):abs():max():item() < 1e-6)
  assert((block(x) - plain(x)):abs():max():item() < 1e-6)
end
print 'as on one device']]):format(policy, policy == 'dp' and 1 or 2), 'test')
      local said, code = shell.nnscaler(path, 'timeout 100')
      assert.equal(0, code, said)
      assert.matches('as on one device', said)
    end)
  end
end)
