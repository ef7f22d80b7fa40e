-- The ways in which people start ranks, each as a shell command around the arguments of the
-- program. A run that hangs is ended by `timeout`.
local shell = require 'tests.cli.support.shell'

local venv = os.getenv 'NNSCALER_VENV' or (os.getenv 'HOME' .. '/.cache/nnscaler/venv')

local M = { venv = venv }

local kTorchrun = ("OMP_NUM_THREADS=1 timeout %%d '%s/bin/torchrun' --no-python"):format(venv)

-- A port that nobody uses now.
function M.port()
  local pipe = assert(io.popen(
    "python3 -c 'import socket; s = socket.socket(); s.bind((\"\", 0)); "
      .. "print(s.getsockname()[1])'"))
  local port = pipe:read '*n'
  pipe:close()
  M.last_port = port
  return port
end

-- Starts n processes at once, each with its own variables; each says what it leaves with.
local function side_by_side(n, seconds, command, variables)
  local commands = {}
  for r = 0, n - 1 do
    commands[r + 1] = ('{ %s timeout %d %s; rc=$?; echo "process %d left with $rc"; (exit $rc); }')
      :format(variables(r), seconds, command, r)
  end
  return shell.at_once(commands)
end

-- Whether a process listens at a port of this host.
function M.listens(port)
  local said, code = shell.run(('ss -Hltn "sport = :%d"'):format(port))
  assert(code == 0, said)
  return said ~= ''
end

local function command(arguments) return ("'%s' %s"):format(shell.binary, arguments) end

M.by_name = {
  mpirun = function(n, arguments, seconds)
    return ('timeout %d mpirun --allow-run-as-root --oversubscribe --bind-to none -np %d %s')
      :format(seconds, n, command(arguments))
  end,
  torchrun = function(n, arguments, seconds)
    return (kTorchrun .. ' --standalone --nproc-per-node %d %s'):format(seconds, n,
      command(arguments))
  end,
  ['torchrun that starts again once'] = function(n, arguments, seconds)
    return (kTorchrun .. ' --standalone --max-restarts 1 --nproc-per-node %d %s'):format(seconds,
      n, command(arguments))
  end,
  ['torchrun of two nodes'] = function(n, arguments, seconds)
    local agent = (kTorchrun:gsub('timeout %%d ', '')
      .. ' --nnodes=2 --nproc-per-node %d --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:%d '
      .. '--rdzv-id=nnscaler --local-addr=127.0.0.1 %s'):format(n / 2, M.port(), command(arguments))
    return side_by_side(2, seconds, 'env ' .. agent, function() return '' end)
  end,
  ['variables set by hand'] = function(n, arguments, seconds)
    local port = M.port()
    return side_by_side(n, seconds, command(arguments), function(r)
      return ('RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d'):format(r, n, port)
    end)
  end,
  ["Slurm's variables"] = function(n, arguments, seconds)
    local port = M.port()
    return side_by_side(n, seconds, command(arguments), function(r)
      return ('SLURM_PROCID=%d SLURM_STEP_NUM_TASKS=%d SLURM_LOCALID=%d SLURM_NODEID=0 '
        .. "SLURM_STEP_TASKS_PER_NODE='%d' MASTER_ADDR=127.0.0.1 MASTER_PORT=%d"):format(r, n, r, n,
        port)
    end)
  end,
  ['nnscaler run -n'] = function(n, arguments, seconds)
    return ('timeout %d %s -n %d'):format(seconds, command(arguments), n)
  end,
}

--- Runs the program on n ranks; returns what all wrote and the exit code.
---@param launcher string a key of `by_name`
---@param n integer
---@param arguments string
---@param seconds? integer limit
---@return string output, integer code
function M.run(launcher, n, arguments, seconds)
  return shell.run(M.by_name[launcher](n, arguments, seconds or 120))
end

return M
