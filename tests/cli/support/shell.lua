-- Runs the program as a person does, in a folder of its own that goes away with the spec.
local base = require 'nnscaler._C.base'

local M = { binary = base.executable }

--- Makes a folder with files; returns its path and a function that removes it.
function M.folder()
  local path = os.tmpname()
  os.remove(path)
  base.make_folder(path)
  return path, function() os.execute("rm -rf '" .. path .. "'") end
end

--- Runs a shell command. Returns what it wrote (both streams) and its exit code.
function M.run(command)
  local pipe = assert(io.popen(('{ %s ; } 2>&1; printf "\\nrc=%%d" $?'):format(command)))
  local output = pipe:read '*a'
  pipe:close()
  local body, code = output:match '^(.*)\nrc=(%d+)$'
  return body, tonumber(code)
end

--- Runs the program with arguments; `before` stands in front (variables, cd).
function M.nnscaler(arguments, before)
  return M.run(("%s '%s' %s"):format(before or '', M.binary, arguments))
end

return M
