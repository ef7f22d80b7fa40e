--- Metrics for TensorBoard: event files of scalars, `<tag>/<metric>` by step. A resumed run begins
--- a new file, which says that steps from its first one on count anew.
---
--- An event file is a row of records: length (8 bytes), its checksum (4), a protocol buffer of type
--- Event, its checksum (4); checksums are masked CRC-32C. Numbers are little-endian.
local base = require 'nnscaler._C.base'
local bit = require 'bit'
local check = require 'nnscaler.loggers.arguments'
local fail = require 'nnscaler.fail'
local metric_names = require('nnscaler.loggers.metrics').names
local process = require 'nnscaler._C.process'

local band, bxor, rshift, bor, lshift = bit.band, bit.bxor, bit.rshift, bit.bor, bit.lshift

-- --- numbers

-- An unsigned integer below 2^53 in so many bytes.
local function bytes_of(x, count)
  local out = {}
  for i = 1, count do
    out[i] = string.char(x % 256)
    x = math.floor(x / 256)
  end
  return table.concat(out)
end

-- A binary floating point number (IEEE 754) of so many bits of exponent and fraction.
local function float_of(x, exponent_bits, fraction_bits)
  local bias = 2 ^ (exponent_bits - 1) - 1
  local sign, exponent, fraction = 0, 0, 0
  if x ~= x then
    exponent, fraction = 2 * bias + 1, 2 ^ (fraction_bits - 1)
  else
    if x < 0 or 1 / x < 0 then sign, x = 1, -x end
    if x == math.huge then
      exponent = 2 * bias + 1
    elseif x > 0 then
      local _, e = math.frexp(x) -- x = m · 2^e, 0.5 ≤ m < 1
      exponent = math.max(e - 1 + bias, 0)
      local unit = exponent > 0 and e - 1 - fraction_bits or 1 - bias - fraction_bits
      -- The nearest, of two equally near the even one: 2^52 + q has no fraction.
      local q = math.ldexp(x, -unit)
      if q < 2 ^ 52 then q = q + 2 ^ 52 - 2 ^ 52 end
      fraction = exponent > 0 and q - 2 ^ fraction_bits or q
      if fraction >= 2 ^ fraction_bits then exponent, fraction = exponent + 1, 0 end
      if exponent > 2 * bias then exponent, fraction = 2 * bias + 1, 0 end
    end
  end
  local low_bytes = (exponent_bits + fraction_bits + 1) / 8
  local cut = fraction_bits % 8 -- bits of the fraction in its last byte
  local low = bytes_of(fraction % 2 ^ (fraction_bits - cut), (fraction_bits - cut) / 8)
  local top = math.floor(fraction / 2 ^ (fraction_bits - cut)) + exponent * 2 ^ cut
    + sign * 2 ^ (exponent_bits + cut)
  return low .. bytes_of(top, low_bytes - #low)
end

-- --- checksums

local crc_table = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = bxor(rshift(c, 1), band(c, 1) == 1 and 0x82f63b78 or 0) end
  crc_table[i] = c
end

local function masked_crc(text)
  local c = -1
  for i = 1, #text do
    c = bxor(crc_table[band(bxor(c, text:byte(i)), 255)], rshift(c, 8))
  end
  c = bxor(c, -1)
  return (bor(rshift(c, 15), lshift(c, 17)) % 2 ^ 32 + 0xa282ead8) % 2 ^ 32
end

-- --- protocol buffers

local function varint(x)
  local out = {}
  repeat
    local low = x % 128
    x = math.floor(x / 128)
    out[#out + 1] = string.char(x > 0 and low + 128 or low)
  until x == 0
  return table.concat(out)
end

local function integer(field, x) return varint(field * 8) .. varint(x) end
local function text(field, x) return varint(field * 8 + 2) .. varint(#x) .. x end

-- Event: wall_time = 1, step = 2, and what happened.
local started, clock = os.time(), base.clock()
local function event(step, what)
  local wall_time = started + base.clock() - clock
  return varint(1 * 8 + 1) .. float_of(wall_time, 11, 52) .. integer(2, step) .. what
end

local function scalar(tag, value)
  return text(1, text(1, tag) .. varint(2 * 8 + 5) .. float_of(value, 8, 23))
end

local TensorBoard = {}
TensorBoard.__index = TensorBoard

local function refuse(path, message)
  fail('state', 'log.tensorboard', ("cannot write '%s': %s"):format(path, message or '?'))
end

function TensorBoard:record(bytes)
  local length = bytes_of(#bytes, 8)
  local ok, message = self.handle:write(length, bytes_of(masked_crc(length), 4), bytes,
    bytes_of(masked_crc(bytes), 4))
  if ok then ok, message = self.handle:flush() end
  if not ok then refuse(self.path, message) end
end
-- As in loggers/file.lua: a flush that fails must not run twice.
jit.off(TensorBoard.record)

function TensorBoard:setup(trainer)
  local folder = self.root_dir .. '/' .. self.name
  base.make_folder(folder)
  local stem = ('%s/events.out.tfevents.%010d.%s'):format(folder, os.time(), (process.host()))
  local n = 0
  repeat -- a second run within a second
    self.path = ('%s.%d'):format(stem, n)
    n = n + 1
  until not base.file_exists(self.path)
  local handle, message = io.open(self.path, 'wb')
  if not handle then refuse(self.path, message) end
  self.handle = handle
  self:record(event(0, text(3, 'brain.Event:2')))
  if trainer.step > 0 then
    -- SessionLog with status START: what other files have from this step on is dropped.
    self:record(event(trainer.step + 1, text(7, integer(1, 1))))
  end
end

function TensorBoard:log_metrics(metrics, step, options)
  local values = {}
  for i, name in ipairs(metric_names(metrics)) do
    values[i] = scalar(options.tag .. '/' .. name, metrics[name])
  end
  self:record(event(step, text(5, table.concat(values))))
end

function TensorBoard:finalize()
  if not self.handle then return end
  local ok, message = self.handle:close()
  self.handle = nil
  if not ok then refuse(self.path, message) end
end

local known = { root_dir = 'the name of a folder', name = 'a text' }

--- Makes the logger; files lie in `root_dir/name`.
---@param args { root_dir: string, name?: string } name: 'run' by default
return function(args)
  check('log.tensorboard', args, known, 'root_dir')
  return setmetatable({ root_dir = args.root_dir, name = args.name or 'run' }, TensorBoard)
end
