-- Runs the program as the user does, in a folder of its own that goes away with the spec.
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

--- A command that runs commands at once and waits for all; its exit code is their greatest.
---@param commands string[]
---@return string
function M.at_once(commands)
  local parts = { 'pids=; worst=0; ' }
  for i, command in ipairs(commands) do
    parts[i + 1] = ('%s & pids="$pids $!"; '):format(command)
  end
  parts[#parts + 1] = 'for p in $pids; do wait $p; rc=$?; '
    .. '[ $rc -gt $worst ] && worst=$rc; done; (exit $worst)'
  return table.concat(parts)
end

--- Processes whose command line contains a text, a line each; '' where there are none.
---@param text string of letters, digits and what a pattern takes as it is
---@return string
function M.processes(text)
  -- In brackets the first letter does not find the shell that asks.
  local said, code = M.run(("pgrep -af '[%s]%s'"):format(text:sub(1, 1), text:sub(2)))
  assert(code == 0 or code == 1, 'pgrep: ' .. said) -- 1: none
  return said
end

--- Runs the program with arguments; `before` stands in front (variables, cd).
function M.nnscaler(arguments, before)
  return M.run(("%s '%s' %s"):format(before or '', M.binary, arguments))
end

return M
