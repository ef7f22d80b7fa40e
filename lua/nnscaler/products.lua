--- Which kernel makes a matrix product on this machine: ATen's, or tiles of ours (docs/figures.md).
--- What `nnscaler profile` measured decides, for as many threads; else a rule. The choice stands in
--- the generated program, so a run that is started again repeats it.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local log = require('nnscaler.log').logger 'nnscaler.program'
local process = require 'nnscaler._C.process'
local solve = require 'nnscaler._C.solve'

local M = {}

local kFormat = 1
local kKernels = { aten = true, tiles = true }

local function cpuinfo()
  local file = io.open '/proc/cpuinfo'
  local text = file and file:read '*a' or ''
  if file then file:close() end
  return text
end

--- Which machine measurements are of.
---@return { host: string, processor: string, isa: string }
function M.machine()
  local text = cpuinfo()
  local flags = (text:match 'flags%s*:([^\n]*)' or '') .. ' '
  local function has(list)
    for flag in list:gmatch '%S+' do
      if not flags:find(' ' .. flag .. ' ', 1, true) then return false end
    end
    return true
  end
  local _, id = process.host()
  local isa = os.getenv 'NNSCALER_ISA'
    or has 'avx512f avx512cd avx512bw avx512dq avx512vl' and 'avx512' or has 'avx2 fma' and 'avx2'
    or 'narrow'
  return { host = id, processor = text:match 'model name%s*:%s*([^\n]+)' or 'unknown processor',
    isa = isa }
end

--- Where measurements are kept: beside a profile of the machine.
---@param profile? string path of the profile; by default the one in the user's cache
---@return string path '' where there is no home
function M.path(profile)
  profile = profile or solve.profile_path()
  return profile == '' and '' or (profile:match '^(.*/)' or '') .. 'kernels.json'
end

-- Whether large products that were not measured go to tiles: MKL is slow on processors of others.
local function by_rule(machine)
  return machine.isa == 'avx512' and machine.processor:find '^AMD' ~= nil
end

--- What a file holds of this machine, or nil and why not.
---@param path string
---@param machine table as machine() gives it
---@return table[]|nil products { call =, threads =, kernel =, aten_s =, tiles_s = }
---@return string|nil why not; nothing where there is no file
function M.read(path, machine)
  if path == '' or base.file_exists(path) ~= 'file' then return nil end
  local ok, data = pcall(function() return base.json_decode(base.file_read(path, 'products')) end)
  local sound = ok and type(data) == 'table' and data.kind == 'nnscaler.kernels'
    and type(data.machine) == 'table' and type(data.products) == 'table'
  for _, entry in ipairs(sound and data.products or {}) do
    sound = sound and type(entry) == 'table' and type(entry.call) == 'string'
      and type(entry.threads) == 'number' and kKernels[entry.kernel] ~= nil
  end
  if not sound then return nil, 'it is damaged' end
  if data.format ~= kFormat then
    return nil, ('it has format %s, this version writes %d'):format(tostring(data.format), kFormat)
  end
  for _, key in ipairs { 'host', 'processor', 'isa' } do
    if data.machine[key] ~= machine[key] then
      return nil, ('it is of another machine: its %s is %s, not %s'):format(key,
        tostring(data.machine[key]), machine[key])
    end
  end
  return data.products
end

--- Writes measurements, in place of those of the same calls that the file holds of this machine.
---@param path string
---@param machine table
---@param products table[]
function M.write(path, machine, products)
  local by_call, order = {}, {}
  for _, list in ipairs { M.read(path, machine) or {}, products } do
    for _, entry in ipairs(list) do
      local call = ('%s, %d'):format(entry.call, entry.threads)
      if not by_call[call] then order[#order + 1] = call end
      by_call[call] = entry
    end
  end
  table.sort(order)
  local lines = {}
  for i, call in ipairs(order) do lines[i] = '    ' .. base.json_encode(by_call[call]) end
  base.file_write(path, ('{\n  "kind": "nnscaler.kernels", "format": %d,\n  "machine": %s,\n'
    .. '  "products": [\n%s\n  ]\n}\n'):format(kFormat, base.json_encode(machine),
    table.concat(lines, ',\n')), 'products.write')
end

local function forbidden_of(names)
  local list = type(names) == 'string' and { names } or names or {}
  for _, name in ipairs(list) do
    if not kKernels[name] then
      fail('usage', 'products.forbid', ("forbid_kernels names '%s'; expected aten or tiles")
        :format(tostring(name)))
    end
  end
  return list
end

--- What programs choose kernels by.
---@param threads? integer of a rank
---@param forbid? string|string[] as forbid_kernels of a job
---@return { measured: table<string, string>, by_rule: boolean, forbidden: string[] }
function M.choice(threads, forbid)
  local machine, path, measured = M.machine(), M.path(), {}
  local list, why = M.read(path, machine)
  if why then
    log.warning_once("Kernels measured in '%s' are not used: %s; `nnscaler profile JOB` measures "
      .. 'anew', path, why)
  end
  threads = threads or process.processors()
  for _, entry in ipairs(list or {}) do
    if entry.threads == threads then measured[entry.call] = entry.kernel end
  end
  return { measured = measured, by_rule = by_rule(machine), forbidden = forbidden_of(forbid) }
end

return M
