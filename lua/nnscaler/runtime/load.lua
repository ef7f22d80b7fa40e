--- Functions of a generated program from its text.
local fail = require 'nnscaler.fail'

-- Functions of a generated table that are straight lines of calls into C: the JIT would gain
-- nothing.
local function plain(f)
  jit.off(f, true)
  return f
end

--- Compiles the text of a program.
---@param text string
---@param chunk string its name, for errors
---@param segments { name: string, kind: string, stage: integer }[] that it must have
---@param with_step? boolean whether a step stands in it
---@param gathers? boolean whether that gathers weights
---@param with_casts? boolean whether it casts weights once a step
---@return table<integer, table<string, function>> stages functions of each stage by kind: F, B, W
---@return table|nil step functions of the step by name
---@return function|nil casts puts casts of weights beside them
return function(text, chunk, segments, with_step, gathers, with_casts)
  local f, message = loadstring(text, chunk)
  if not f then
    fail('state', 'program.load', 'the generated program does not compile: ' .. message,
      'mend the file, or remove it to have it written anew')
  end
  local functions, stages = plain(f)(), {}
  local function named(name)
    local run = type(functions) == 'table' and functions[name]
    if type(run) ~= 'function' then
      fail('state', 'program.load', ('%s returns no table with a %s function'):format(chunk, name))
    end
    return plain(run)
  end
  for _, segment in ipairs(segments) do
    stages[segment.stage] = stages[segment.stage] or {}
    stages[segment.stage][segment.kind] = named(segment.name)
  end
  local casts = with_casts and named 'casts' or nil
  if not with_step then return stages, nil, casts end
  local step = functions.step
  local names = { 'sum', 'scale', 'squares', 'clip', 'update', gathers and 'gather' or nil }
  for _, name in ipairs(names) do
    if type(step) ~= 'table' or type(step[name]) ~= 'function' then
      fail('state', 'program.load', ('%s returns no step with a %s function'):format(chunk, name))
    end
    plain(step[name])
  end
  return stages, step, casts
end
