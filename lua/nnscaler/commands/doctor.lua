--- `nnscaler doctor`: what this installation and this machine offer, and what is wrong with them.

local base = require 'nnscaler._C.base'
local core = require 'nnscaler._C.job'
local process = require 'nnscaler._C.process'

local M = {}

local function read(path)
  local file = io.open(path)
  if not file then return '' end
  local text = file:read '*a'
  file:close()
  return text
end

local function gib(kib) return ('%.1f GiB'):format(kib / 2 ^ 20) end

---@class nnscaler.doctor.Report
---@field lines { [1]: string, [2]: string }[] what and its value
---@field warnings string[] what may be slower or smaller than expected
---@field problems string[] what does not work

local function processors(report)
  local cpuinfo = read '/proc/cpuinfo'
  local _, online = cpuinfo:gsub('processor%s*:', '')
  local usable = process.processors()
  table.insert(report.lines, { 'processors', ('%d of %d usable, %s'):format(
    usable, online, cpuinfo:match 'model name%s*:%s*([^\n]+)' or 'unknown model') })
  if usable < online then
    table.insert(report.warnings, ('this process may use %d of %d processors (a launcher or a '
      .. 'container binds it)'):format(usable, online))
  end
  local threads = os.getenv 'OMP_NUM_THREADS'
  if threads then
    table.insert(report.warnings, ('OMP_NUM_THREADS=%s is set; a job takes its key `threads`, else '
      .. 'all usable processors'):format(threads))
  end
  local meminfo = read '/proc/meminfo'
  local total = tonumber(meminfo:match 'MemTotal:%s*(%d+)')
  local free = tonumber(meminfo:match 'MemAvailable:%s*(%d+)')
  if total and free then
    table.insert(report.lines, { 'memory', ('%s, %s available'):format(gib(total), gib(free)) })
  end
end

-- Returns whether a GPU can be used.
local function libtorch(report)
  local ok, tensor = pcall(require, 'nnscaler._C.tensor')
  if not ok then
    table.insert(report.problems, tostring(tensor))
    return false
  end
  local info = tensor.build_info()
  table.insert(report.lines, { 'LibTorch', ('%s, %s kernels'):format(
    info.version, info.cpu_capability) })
  table.insert(report.lines, { '  from', info.folder })
  table.insert(report.lines, { '  our kernels', ('%s of %s'):format(info.isa,
    table.concat(info.isas, ', ')) })
  if info.isa == 'plain' or info.isa == 'sse4' then
    table.insert(report.warnings, ('our kernels run as %s code, without AVX2: attention and others '
      .. 'are slow'):format(info.isa))
  end
  table.insert(report.lines, { '  threads', ('%d'):format(tensor.get_num_threads()) })
  local has_cuda, reason = tensor.has_cuda()
  local cuda = tensor.cuda_build()
  table.insert(report.lines, { '  for GPUs', cuda.problem ~= '' and cuda.problem
    or ('our kernels built for %s and later; %s'):format(table.concat(cuda.architectures, ', '),
      has_cuda and 'in use' or 'no GPU here') })
  if cuda.problem:find 'cannot be opened' then table.insert(report.warnings, cuda.problem) end
  table.insert(report.lines, { 'devices', has_cuda and 'cpu, cuda' or 'cpu' })
  if has_cuda then return true end
  table.insert(report.lines, { '  no cuda', reason })
  if not reason:find('^no GPU') then
    table.insert(report.problems, 'the GPU of this machine cannot be used: ' .. reason)
  end
  return false
end

local function back_ends(report, has_cuda)
  local ok, comm = pcall(require, 'nnscaler._C.comm')
  if not ok then return end -- LibTorch cannot be opened, and that was said
  local usable, missing = {}, {}
  for _, backend in ipairs(comm.backends()) do
    if backend.problem == '' then
      usable[#usable + 1] = backend.name
    else
      missing[#missing + 1] = { '  no ' .. backend.name, backend.problem }
    end
  end
  table.insert(report.lines, { 'back ends', table.concat(usable, ', ') })
  for _, line in ipairs(missing) do
    table.insert(report.lines, line)
    local name = line[1]:match '%S+$'
    if name ~= 'nccl' or has_cuda then
      table.insert(report.warnings, ('the back end %s cannot be used: %s'):format(name, line[2]))
    end
  end
end

local function library(report)
  local from_disk = os.getenv 'NNSCALER_LUA_PATH'
  table.insert(report.lines, { '  library', from_disk
    and ("'%s' (NNSCALER_LUA_PATH)"):format(from_disk) or 'compiled in' })
  if from_disk and base.file_exists(from_disk .. '/nnscaler/init.lua') ~= 'file' then
    table.insert(report.problems, ("NNSCALER_LUA_PATH: no nnscaler/init.lua in '%s'"):format(
      from_disk))
  end
  if not pcall(require, 'luassert') then
    table.insert(report.warnings, '`nnscaler test` needs luassert (Debian: lua-luassert)')
  end
end

--- Looks at everything.
---@return nnscaler.doctor.Report
function M.examine()
  local report = { lines = {}, warnings = {}, problems = {} }
  table.insert(report.lines, { 'nnscaler', ('%s, built by %s'):format(
    base.version, base.compiler) })
  table.insert(report.lines, { '  from', base.executable })
  library(report)
  local jit = require 'jit'
  table.insert(report.lines, { 'LuaJIT', ('%s, compiler %s'):format(
    jit.version:gsub('^LuaJIT ', ''), jit.status() and 'on' or 'off') })
  back_ends(report, libtorch(report))
  local problem = require('nnscaler._C.solve').highs_problem()
  table.insert(report.lines, { 'HiGHS', problem == '' and 'there' or 'not there: ' .. problem })
  processors(report)
  return report
end

--- Prints the report, or the configuration reference; returns 1 when something does not work.
---@param opts { schema?: boolean }
---@return integer
function M.run(opts)
  if opts.schema then
    io.write(core.document())
    return 0
  end
  local report = M.examine()
  for _, line in ipairs(report.lines) do print(('%-12s %s'):format(line[1], line[2])) end
  for _, text in ipairs(report.warnings) do print('warning: ' .. text) end
  for _, text in ipairs(report.problems) do print('problem: ' .. text) end
  if #report.warnings + #report.problems == 0 then print 'no problems found' end
  return #report.problems == 0 and 0 or 1
end

return M
