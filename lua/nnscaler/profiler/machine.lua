--- Figures of the machine: what its devices and links do, all ranks at once.
local groups = require 'nnscaler.runtime.groups'
local process = require 'nnscaler._C.process'
local ranks = require 'nnscaler.ranks'
local recorder = require 'nnscaler.runtime.profile'
local release = require('nnscaler._C.runtime').release
local tensor = require 'nnscaler.tensor'

local M = {}

local kLeast, kMost = 8, 30 -- times that something is measured
local kSeconds = 0.03 -- after which it is enough
local kLargest = 2 ^ 24 -- bytes of messages

-- Seconds of f(): the least of some times, each of which all ranks begin together. Others on the
-- machine only make it longer.
local function seconds_of(f)
  f()
  local times, spent = {}, 0
  while #times < kLeast or (spent < kSeconds and #times < kMost) do
    ranks.barrier()
    local start = recorder.clock()
    f()
    times[#times + 1] = recorder.clock() - start
    spent = spent + times[#times]
    -- All ranks go on or none.
    local most = 0
    for _, text in ipairs(ranks.exchange(('%.9g'):format(spent))) do
      most = math.max(most, tonumber(text))
    end
    spent = most
  end
  return math.min(unpack(times))
end

-- The same number of all ranks: the greatest.
local function slowest(seconds)
  local most = 0
  for _, text in ipairs(ranks.exchange(('%.17g'):format(seconds))) do
    most = math.max(most, tonumber(text))
  end
  return most
end

local function drawn(shape) return tensor.randn(shape, { generator = tensor.generator(1) }) end

local function product_rate(dtype, n)
  local a, b = drawn { n, n }:to(dtype), drawn { n, n }:to(dtype)
  return 2 * n ^ 3 / slowest(seconds_of(function() release(a:matmul(b)) end))
end

local function memory_of_host()
  local file = io.open '/proc/meminfo'
  local text = file and file:read '*a' or ''
  if file then file:close() end
  return (tonumber(text:match 'MemTotal:%s*(%d+) kB') or 8e6) * 1024
end

---@return string name of the processor
function M.processor()
  local file = io.open '/proc/cpuinfo'
  local text = file and file:read '*a' or ''
  if file then file:close() end
  return text:match 'model name%s*:%s*([^\n]+)' or 'unknown processor'
end

--- What a device does: products and memory traffic a second, and what a call takes at least.
---@return table
function M.device()
  local x, y = drawn { 2 ^ 23 }, drawn { 2 ^ 23 } -- 32 MiB each, beyond caches
  local small = drawn { 16 }
  local traffic = 3 * 4 * 2 ^ 23 / slowest(seconds_of(function() x:add_(y) end))
  local start = slowest(seconds_of(function()
    for _ = 1, 100 do small:add_(small) end
  end)) / 100
  return {
    memory = math.floor(memory_of_host() / ranks.world_size()), memory_bandwidth = traffic,
    start = start, half_filled = 256,
    flops = { float32 = product_rate('float32', 768), float64 = product_rate('float64', 512),
      bfloat16 = product_rate('bfloat16', 256) },
  }
end

-- Calls of each kind on a tensor of so many bytes, which is the whole one.
local function collectives(group, n, bytes)
  local elements = bytes / 4
  local whole, part = tensor.zeros { elements }, tensor.zeros { elements / n }
  local square, position = tensor.zeros { n, elements / n }, group:position()
  return {
    { 'all_reduce', function() group:all_reduce(whole) end },
    { 'all_gather', function() release(group:all_gather(part, 0, elements)) end },
    { 'reduce_scatter', function() release(group:reduce_scatter(whole, 0)) end },
    { 'all_to_all', function()
      release(group:all_to_all(square, 0, 1, elements))
    end },
    { 'send', function() -- there, so that the receiver waits for all of it
      if position == 0 then
        group:send(whole, 1)
        group:flush()
      elseif position == 1 then
        group:recv(whole, 0)
      end
    end },
  }
end

--- What links take, by collective, ranks and bytes of the whole tensor.
---@return { collective: string, ranks: integer, bytes: integer, seconds: number }[]
function M.links()
  local list, size = {}, ranks.world_size()
  local sizes, n = {}, 2
  while n < size do
    sizes[#sizes + 1] = n
    n = 2 * n
  end
  if size > 1 then sizes[#sizes + 1] = size end
  for _, count in ipairs(sizes) do
    local members = {}
    for r = 0, count - 1 do members[r + 1] = r end
    local inside = ranks.rank() < count
    local group = inside and groups.group(members)
    local bytes = 1024 * count
    while bytes <= kLargest do
      local calls = inside and collectives(group, count, bytes) or { {}, {}, {}, {}, {} }
      for i = 1, 5 do
        local seconds = slowest(seconds_of(calls[i][2] or function() end))
        list[#list + 1] = { collective = calls[i][1], ranks = count, bytes = bytes,
          seconds = seconds }
      end
      bytes = bytes * 4
    end
  end
  return list
end

--- What a model of the links says that is nearest to what they took: start and bandwidth of an
--- all-reduce over all ranks.
---@param list table[] of links()
---@return table
function M.fit(list)
  local n, first, last = ranks.world_size(), nil, nil
  for _, point in ipairs(list) do
    if point.collective == 'all_reduce' and point.ranks == n then
      first, last = first or point, point
    end
  end
  if not first then return { call = 3e-5, latency = 5e-6, seconds_per_byte = 1 / 3e9,
    across_nodes = 1 } end
  local latency = 1e-6
  local byte = (last.seconds - first.seconds) / (last.bytes - first.bytes) * n / (2 * (n - 1))
  return { call = math.max(first.seconds - 2 * (n - 1) * latency, latency), latency = latency,
    seconds_per_byte = math.max(byte, 1e-12), across_nodes = 1 }
end

--- Which machine this is.
---@param threads integer of a rank
---@return table
function M.identity(threads)
  local _, id = process.host()
  return { host = id, processor = M.processor(), ranks = ranks.world_size(), threads = threads }
end

return M
