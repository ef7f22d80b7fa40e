--- What each rank runs: every collective against its closed form. The same cases for rank threads
--- (tests/lua/comm_spec.lua) and for processes (tests/cli/comm_spec.lua).
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'

local M = {}
local cases = {}

local dtypes = { 'float32', 'float64', 'bfloat16', 'float16', 'int64', 'int32', 'int16', 'int8',
  'uint8' }

-- Start and length of part `index` of `whole` in `parts`: sizes differ by at most one.
local function part(whole, index, parts)
  local least, rest = math.floor(whole / parts), whole % parts
  return index * least + math.min(index, rest), least + (index < rest and 1 or 0)
end

-- Element i of rank r's tensor of n elements.
local function values(rank, n)
  local out = {}
  for i = 1, n do out[i] = rank * 100 + i end
  return out
end

local function same(got, want, what)
  assert(#got == #want, what .. ': ' .. #got .. ' elements, expected ' .. #want)
  for i = 1, #want do
    assert(got[i] == want[i], ('%s: %d is %s, expected %s'):format(
      what, i, tostring(got[i]), tostring(want[i])))
  end
end

-- Ranks agree on every bit of a tensor: its numbers, written exactly, are the same text on all.
local function same_bits(group, t, what)
  local text = {}
  for i, x in ipairs(t:flatten():tolist()) do text[i] = ('%.17g'):format(x) end
  local all = group:exchange(table.concat(text, ' '))
  for r = 2, #all do assert(all[r] == all[1], what .. ': bits differ on rank ' .. r - 1) end
end

function cases.all_reduce(group, rank, size)
  for _, n in ipairs { 1, 3, 4, 7, 64, 1000 } do
    local t = T.tensor(values(rank, n))
    group:all_reduce(t)
    local want = {}
    for i = 1, n do want[i] = size * i + 100 * size * (size - 1) / 2 end
    same(t:tolist(), want, 'sum of ' .. n)
    local m = T.tensor(values(rank, n))
    group:all_reduce(m, 'max')
    same(m:tolist(), values(size - 1, n), 'max of ' .. n)
    group:all_reduce(m:copy_(T.tensor(values(rank, n))), 'min')
    same(m:tolist(), values(0, n), 'min of ' .. n)
  end
end

-- Long enough for several segments, with an odd rest.
function cases.long_all_reduce(group, rank, size)
  local n = 1100003
  local t = T.arange(n, { dtype = 'float64' })
  local want = t * size + size * (size - 1) / 2
  t:add_(rank)
  group:all_reduce(t)
  assert(t:equal(want), 'long sum differs')
end

function cases.dtypes(group, rank, size)
  for _, dtype in ipairs(dtypes) do
    for _, n in ipairs { 1, 5, 2 * size + 1 } do
      local t = T.full({ n }, rank + 1, { dtype = dtype })
      group:all_reduce(t)
      assert(t.dtype == dtype and t:equal(T.full({ n }, size * (size + 1) / 2, { dtype = dtype })),
        'sum of ' .. dtype)
      local whole = group:all_gather(T.full({ 2 }, rank, { dtype = dtype }), 0, 2 * size)
      for i, x in ipairs(whole:tolist()) do assert(x == math.floor((i - 1) / 2), dtype) end
      local b = T.full({ n }, rank, { dtype = dtype })
      group:broadcast(b, size - 1)
      assert(b:equal(T.full({ n }, size - 1, { dtype = dtype })), 'broadcast of ' .. dtype)
    end
  end
  local flags = {}
  for r = 1, size do flags[r] = r - 1 == rank end
  local any = T.tensor(flags)
  group:all_reduce(any)
  same(any:tolist(), T.ones({ size }, { dtype = 'bool' }):tolist(), 'any')
  local every = T.tensor(flags)
  group:all_reduce(every, 'min')
  if size > 1 then same(every:tolist(), T.zeros({ size }, { dtype = 'bool' }):tolist(), 'every') end
  assert(group:all_gather(T.tensor { rank == 0 }, 0, size):tolist()[1] == true)
end

-- Addends of many magnitudes: the order of summation shows in the bits, and is that of the ranks.
function cases.equal_bits(group, rank, size)
  for _, dtype in ipairs { 'float32', 'float64', 'bfloat16' } do
    for _, n in ipairs { 17, 20011 } do
      local function addend(r)
        local x = T.randn({ n }, { generator = T.generator(r), dtype = 'float64' })
        return (x * 10 ^ (r % 3)):to(dtype)
      end
      local t = addend(rank)
      group:all_reduce(t)
      same_bits(group, t, dtype)
      local wide = dtype == 'bfloat16' and 'float32' or dtype
      local sum = addend(0):to(wide)
      for r = 1, size - 1 do sum = sum + addend(r):to(wide) end
      assert(t:equal(sum:to(dtype)), dtype .. ': not the sum in order of rank')
    end
  end
end

function cases.nan(group, rank)
  for _, reduce in ipairs { 'sum', 'max', 'min' } do
    local t = T.tensor { rank == 0 and 0 / 0 or 1, 2 }
    group:all_reduce(t, reduce)
    local x = t:tolist()[1]
    assert(x ~= x, reduce .. ' hides a NaN')
  end
end

function cases.empty(group, _, size)
  local e = T.zeros { 0, 3 }
  group:all_reduce(e)
  group:broadcast(e, 0)
  assert(group:all_gather(e, 0, 0):numel() == 0)
  assert(group:reduce_scatter(T.zeros { 4, 0 }, 0):numel() == 0)
  if size > 1 then
    -- Fewer rows than ranks: the last ones have none.
    local _, mine = part(1, group:position(), size)
    assert(group:all_gather(T.ones { mine, 2 }, 0, 1):sum():item() == 2)
  end
end

function cases.scalar(group, rank, size)
  local t = T.tensor(rank + 1)
  group:all_reduce(t)
  assert(t:dim() == 0 and t:item() == size * (size + 1) / 2)
end

function cases.non_contiguous(group, rank, size)
  local whole = T.zeros { 4, 6 }
  local t = whole:transpose(0, 1):narrow(0, 1, 3)
  t:fill_(rank + 1)
  group:all_reduce(t)
  local total = size * (size + 1) / 2
  assert(t:eq(total):all():item(), 'view not reduced')
  assert(whole:sum():item() == 12 * total, 'elements beside the view changed')
  group:broadcast(t:fill_(rank), 0)
  assert(t:sum():item() == 0 and whole:sum():item() == 0)
  local columns = T.arange(6 * size, { dtype = 'float32' }):view { 6, size }
  local got = group:all_gather(columns:narrow(1, rank, 1), 1, size)
  assert(got:equal(columns), 'columns differ')
end

function cases.async(group, rank, size)
  local total = size * (size + 1) / 2
  local tensors, handles = {}, {}
  for i, n in ipairs { 5, 300000, 1, 70000 } do
    tensors[i] = T.full({ n }, rank + 1)
    handles[i] = group:all_reduce_async(tensors[i])
  end
  local view = T.full({ 4, 2 }, rank + 1):transpose(0, 1)
  local handle = group:all_reduce_async(view)
  -- Other calls, and waiting in another order, are free.
  local between = T.tensor { rank + 1 }
  group:all_reduce(between)
  assert(between:item() == total)
  handle:wait()
  assert(view:eq(total):all():item() and handle:done())
  for i = #handles, 1, -1 do
    handles[i]:wait()
    assert(tensors[i]:eq(total):all():item(), 'tensor ' .. i)
  end
end

function cases.all_gather(group, rank, size)
  for _, whole in ipairs { 1, size, 2 * size + 1, 12 } do
    local start, length = part(whole, rank, size)
    local mine, want = {}, {}
    for i = 1, length do mine[i] = start + i - 1 end
    for i = 1, whole do want[i] = i - 1 end
    local got = group:all_gather(T.tensor(mine, { dtype = 'float32' }), 0, whole)
    same(got:tolist(), want, 'gather of ' .. whole)
  end
end

function cases.reduce_scatter(group, rank, size)
  local rows, columns = 3, 2 * size + 1
  local t = T.arange(rows * columns, { dtype = 'float64' }):view { rows, columns }
  local got = group:reduce_scatter(t, 1)
  local start, length = part(columns, rank, size)
  assert(got:equal((t * size):narrow(1, start, length)), 'part differs')
end

function cases.all_to_all(group, rank, size)
  local rows, columns = size + 1, 2 * size
  local t = T.arange(rows * columns, { dtype = 'int64' }):view { rows, columns }
  -- From columns cut to rows cut, and back.
  local mine = t:narrow(1, 2 * rank, 2)
  local by_rows = group:all_to_all(mine, 0, 1, columns)
  assert(by_rows:equal(t:narrow(0, part(rows, rank, size))), 'rows differ')
  assert(group:all_to_all(by_rows, 1, 0, rows):equal(mine), 'columns differ')
end

function cases.send_recv(group, rank, size)
  if size == 1 then return end
  local left, right = (rank - 1) % size, (rank + 1) % size
  for _, n in ipairs { 5, 0, 200000 } do
    -- All send first: a send does not wait for its receiver, nor see what happens afterwards.
    local t = T.full({ n }, rank, { dtype = 'float32' })
    group:send(t, right)
    group:send(t:add(0.5), right)
    t:fill_(-1)
    for _, more in ipairs { 0, 0.5 } do
      local got = group:recv(T.zeros({ n }, { dtype = 'float32' }), left)
      assert(got:equal(T.full({ n }, left + more)), 'from the left')
    end
  end
end

function cases.broadcast(group, rank, size)
  for root = 0, size - 1 do
    local t = T.full({ 2, 3 }, rank + 1, { dtype = 'float32' })
    group:broadcast(t, root)
    assert(t:sum():item() == 6 * (root + 1))
  end
end

function cases.exchange(group, rank, size)
  local all = group:exchange('rank ' .. rank .. ('x'):rep(rank))
  assert(#all == size and all[1] == 'rank 0')
  assert(all[rank + 1] == 'rank ' .. rank .. ('x'):rep(rank))
  assert(#table.concat(group:exchange '') == 0)
end

function cases.low_precision(group, rank, size)
  local t = T.full({ 3 }, rank == 0 and 256 or 1, { dtype = 'bfloat16' })
  group:all_reduce(t)  -- summed in float32 and rounded once, to a multiple of 2
  local want = T.full({ 3 }, 256 + size - 1):to 'bfloat16'
  assert(t:equal(want))
end

function cases.bytes(group, _, size)
  local before = group:bytes_sent()
  group:all_reduce(T.ones({ 10 * size }, { dtype = 'float32' }))
  assert(group:bytes_sent() - before == 2 * (size - 1) * 10 * 4)
  before = group:bytes_sent()
  group:all_gather(T.ones({ 3 }, { dtype = 'float64' }), 0, 3 * size)
  assert(group:bytes_sent() - before == (size - 1) * 3 * 8)
end

function cases.disagree(group, rank)
  group:all_reduce(T.ones { rank == 1 and 4 or 3 })
end

--- What starts does not wait: the second rank starts only when the first has said that it goes on.
function cases.apart(_, rank, _, comm)
  local group = comm:group({ 0, 1 }, { checked = false }) -- ranks meet when they compare
  local x = T.full({ 3000000 }, rank + 1)
  if rank == 1 then group:recv(T.zeros { 1 }, 0) end
  local handle = group:all_reduce_async(x)
  if rank == 0 then
    assert(not handle:done(), 'a sum without the second addend')
    group:send(T.ones { 1 }, 1)
  end
  -- It goes on while the rank does other things.
  local till = base.clock() + 60
  while not handle:done() do assert(base.clock() < till, 'the sum does not go on') end
  assert(x:eq(3):all():item())
end

function cases.fail_under_way(group, rank)
  if rank == 1 then error('boom on one rank') end
  group:all_reduce_async(T.ones { 3000000 }):wait()
end

function cases.fail_alone(group, rank)
  if rank == 1 then error('boom on one rank') end
  group:barrier()
end

-- The last rank fails while the others, whose tensors it never sees, are within a collective.
function cases.fail_beside(_, rank, size, comm)
  if rank == size - 1 then
    local till = os.clock() + 0.004
    while os.clock() < till do end -- luacheck: ignore 542
    error('boom beside the group')
  end
  local ranks = {}
  for r = 1, size - 1 do ranks[r] = r - 1 end
  while true do comm:group(ranks):all_reduce(T.ones { 3 }) end
end

-- Every pair of neighbours, and all but one: each rank is in several groups.
function cases.subgroups(_, rank, size, comm)
  for r = 0, size - 2 do
    if rank == r or rank == r + 1 then
      local t = T.tensor { rank }
      comm:group { r, r + 1 }:all_reduce(t)
      assert(t:item() == 2 * r + 1)
    end
  end
  local ranks = {}
  for r = 1, size - 1 do ranks[r] = r end
  if rank > 0 then
    local group = comm:group(ranks)
    local t = T.ones { 3 }
    group:all_reduce(t)
    assert(t:sum():item() == 3 * (size - 1) and group:position() == rank - 1)
  end
end

--- Names of the cases that all ranks pass, in order.
M.names = {
  'all_reduce', 'long_all_reduce', 'dtypes', 'equal_bits', 'nan', 'empty', 'scalar',
  'non_contiguous', 'async', 'all_gather', 'reduce_scatter', 'all_to_all', 'send_recv',
  'broadcast', 'exchange', 'low_precision', 'bytes', 'subgroups',
}

--- Runs one case on this rank; raises when it is not passed.
function M.run(name, comm)
  local ranks = {}
  for r = 1, comm:size() do ranks[r] = r - 1 end
  local group = comm:group(ranks)
  cases[name](group, comm:rank(), comm:size(), comm)
  if name ~= 'disagree' and not name:find '^fail' then group:barrier() end
end

-- The entry of a rank thread: called with the argument of run_local.
return setmetatable(M, {
  __call = function(_, argument)
    local name = base.json_decode(argument).case
    M.run(name, require('nnscaler._C.comm').current())
    return name .. ' ok'
  end,
})
