--- What each rank thread of comm_spec runs: every collective against its closed form.
local T = require 'nnscaler.tensor'
local json = require 'nnscaler._C.base'

local cases = {}

-- Element i of rank r's tensor of n elements.
local function values(rank, n)
  local out = {}
  for i = 1, n do out[i] = rank * 100 + i end
  return out
end

local function same(got, want, what)
  assert(#got == #want, what .. ': ' .. #got .. ' elements, expected ' .. #want)
  for i = 1, #want do
    assert(got[i] == want[i], ('%s: %d is %g, expected %g'):format(what, i, got[i], want[i]))
  end
end

function cases.all_reduce(group, rank, size)
  for _, n in ipairs { 1, 3, 4, 7, 64 } do
    local t = T.tensor(values(rank, n))
    group:all_reduce(t)
    local want = {}
    for i = 1, n do want[i] = size * i + 100 * size * (size - 1) / 2 end
    same(t:tolist(), want, 'sum of ' .. n)
    local m = T.tensor(values(rank, n))
    group:all_reduce(m, 'max')
    same(m:tolist(), values(size - 1, n), 'max of ' .. n)
  end
end

function cases.all_gather(group, rank, size)
  for _, whole in ipairs { 1, size, 2 * size + 1, 12 } do
    -- Part `rank` of 0 … whole-1, sizes differing by at most one.
    local base, rest = math.floor(whole / size), whole % size
    local start = rank * base + math.min(rank, rest)
    local mine, want = {}, {}
    for i = 1, base + (rank < rest and 1 or 0) do mine[i] = start + i - 1 end
    for i = 1, whole do want[i] = i - 1 end
    local got = group:all_gather(T.tensor(mine, { dtype = 'float32' }), 0, whole)
    same(got:tolist(), want, 'gather of ' .. whole)
  end
end

function cases.reduce_scatter(group, rank, size)
  local rows, columns = 3, 2 * size + 1
  local t = T.arange(rows * columns, { dtype = 'float64' }):view { rows, columns }
  local got = group:reduce_scatter(t, 1)
  local whole = (t * size):tolist()
  local base, rest = math.floor(columns / size), columns % size
  local start = rank * base + math.min(rank, rest)
  for r, row in ipairs(got:tolist()) do
    assert(#row == base + (rank < rest and 1 or 0))
    for c, x in ipairs(row) do assert(x == whole[r][start + c]) end
  end
end

function cases.all_to_all(group, rank, size)
  local rows, columns = size + 1, 2 * size
  local t = T.arange(rows * columns, { dtype = 'int64' }):view { rows, columns }
  -- From columns cut to rows cut, and back.
  local mine = t:narrow(1, 2 * rank, 2)
  local by_rows = group:all_to_all(mine, 0, 1, columns)
  local base, rest = math.floor(rows / size), rows % size
  local start = rank * base + math.min(rank, rest)
  local want = t:narrow(0, start, base + (rank < rest and 1 or 0))
  assert(by_rows:equal(want), 'rows differ')
  assert(group:all_to_all(by_rows, 1, 0, rows):equal(mine), 'columns differ')
end

function cases.send_recv(group, rank, size)
  local t = T.full({ 5 }, rank, { dtype = 'float32' })
  group:send(t, (rank + 1) % size)
  local got = group:recv(T.zeros({ 5 }, { dtype = 'float32' }), (rank - 1) % size)
  same(got:tolist(), T.full({ 5 }, (rank - 1) % size):tolist(), 'from the left')
end

function cases.broadcast(group, rank)
  local t = T.full({ 2, 3 }, rank, { dtype = 'float32' }):transpose(0, 1)
  group:broadcast(t, 1)
  assert(t:sum():item() == 6)
end

function cases.exchange(group, rank, size)
  local all = group:exchange('rank ' .. rank)
  assert(#all == size and all[rank + 1] == 'rank ' .. rank and all[1] == 'rank 0')
end

function cases.low_precision(group, rank)
  local t = T.full({ 3 }, rank == 0 and 256 or 1, { dtype = 'bfloat16' })
  group:all_reduce(t)  -- summed in float32: 256 + 1 + 1 rounds once
  local b = T.tensor({ rank == 1, false })
  group:all_reduce(b)
  assert(b:tolist()[1] == true and b:tolist()[2] == false)
end

function cases.bytes(group, _, size)
  local before = group:bytes_sent()
  group:all_reduce(T.ones({ 10 }, { dtype = 'float32' }))
  local chunk = math.ceil(10 / size)
  assert(group:bytes_sent() - before == 2 * (size - 1) * chunk * 4)
end

function cases.disagree(group, rank)
  group:all_reduce(T.ones { rank == 1 and 4 or 3 })
end

function cases.fail_alone(group, rank)
  if rank == 1 then error('boom on one rank') end
  group:barrier()
end

function cases.subgroups(_, rank, size, comm)
  local half = size / 2
  local first = rank < half and 0 or half
  local ranks = {}
  for i = 1, half do ranks[i] = first + i - 1 end
  local t = T.ones { 3 }
  comm:group(ranks):all_reduce(t)
  assert(t:sum():item() == 3 * half)
end

return function(argument)
  local name = json.json_decode(argument).case
  local comm = require('nnscaler._C.comm').current()
  local ranks = {}
  for r = 1, comm:size() do ranks[r] = r - 1 end
  cases[name](comm:group(ranks), comm:rank(), comm:size(), comm)
  return name .. ' ok'
end
