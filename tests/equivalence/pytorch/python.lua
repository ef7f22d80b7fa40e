--- Runs the scripts of this folder that write what PyTorch computes. Without PyTorch the specs are
--- pending, with the reason.
local base = require 'nnscaler._C.base'

local M = {}

local here = debug.getinfo(1, 'S').source:match '^@(.*)/[^/]*$'
local cache = os.getenv 'XDG_CACHE_HOME' or (os.getenv 'HOME' or '') .. '/.cache'
M.binary = (os.getenv 'NNSCALER_VENV' or cache .. '/nnscaler/venv') .. '/bin/python'

--- Runs a command; returns what it said and its exit code.
---@param command string
---@return string said, string code
function M.shell(command)
  local pipe = io.popen('(' .. command .. ') 2>&1; echo "exit $?"')
  local out = pipe:read '*a'
  pipe:close()
  return out:match '^(.-)exit (%d+)\n$'
end

do
  local said, code = M.shell(("'%s' -c 'import torch, safetensors.torch'"):format(M.binary))
  --- Why there is no PyTorch, or nil.
  M.missing = code ~= '0' and ('no PyTorch in %s: %s'):format(M.binary,
    said:match '([^\n]+)\n*$' or 'not there') or nil
end

--- Why Python modules are missing, or nil.
---@param modules string "a, b"
---@return string|nil
function M.lacks(modules)
  local said, code = M.shell(("'%s' -c 'import %s'"):format(M.binary, modules))
  return code ~= '0' and ('%s in %s: %s'):format(modules, M.binary,
    said:match '([^\n]+)\n*$' or 'not there') or nil
end

local folder = os.tmpname() .. '.d'

--- Runs `script FOLDER`; returns the folder that it wrote to, or nil without PyTorch.
---@param script string
---@return string|nil folder
function M.written_by(script)
  if M.missing then return nil end
  base.make_folder(folder)
  local said, code = M.shell(("'%s' '%s/%s' '%s'"):format(M.binary, here, script, folder))
  assert(code == '0', said)
  return folder
end

function M.remove() os.execute("rm -rf '" .. folder .. "'") end

return M
