--- The text of a generated program becomes functions.
local fail = require 'nnscaler.fail'

--- Compiles the text of a program and returns the functions of each stage by kind: F, B, W. They
--- are straight lines of calls into C, so the JIT would gain nothing.
---@param text string
---@param chunk string its name in errors
---@param segments { name: string, kind: string, stage: integer }[]
---@return table<integer, table<string, function>> stages
return function(text, chunk, segments)
  local f, message = loadstring(text, chunk)
  if not f then
    fail('state', 'program.load', 'the generated program does not compile: ' .. message,
      'mend the file, or remove it to have it written anew')
  end
  local functions, stages = f(), {}
  jit.off(f, true)
  for _, segment in ipairs(segments) do
    local run = type(functions) == 'table' and functions[segment.name]
    if type(run) ~= 'function' then
      fail('state', 'program.load', ('%s returns no table with a %s function'):format(chunk,
        segment.name))
    end
    jit.off(run, true)
    stages[segment.stage] = stages[segment.stage] or {}
    stages[segment.stage][segment.kind] = run
  end
  return stages
end
