--- nnscaler.init: makes the process that runs a script one of the ranks of its launcher, or runs
--- the script again on rank threads of this process.
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local ranks = require 'nnscaler.ranks'
local script = require 'nnscaler.script'

local M = {}

---@class nnscaler.InitOpts
---@field ranks? integer rank threads to start, where no launcher started ranks; 1 by default
---@field backend? string of the communicator: mpi, gloo

--- Joins the other ranks. Where it starts rank threads, each runs the script from its beginning,
--- and the script ends here when they have.
---@param opts? nnscaler.InitOpts
function M.init(opts)
  opts = opts or {}
  local comm = require 'nnscaler._C.comm'
  if comm.current() then return end
  ranks.join { comm = { backend = opts.backend } }
  local count = opts.ranks or 1
  if comm.current() or count == 1 then return end
  local arg = rawget(_G, 'arg')
  if not arg or not arg[0] then
    fail('usage', 'library.init', ('ranks = %d outside of a script; expected `nnscaler FILE.lua`')
      :format(count))
  end
  local arguments = {}
  for i, argument in ipairs(arg) do arguments[i] = argument end
  comm.run_local(count, 'nnscaler.library.launch', base.json_encode {
    file = arg[0], arguments = arguments,
  })
  os.exit(0, true)
end

-- One rank thread: `require 'nnscaler.library.launch'(text)` runs the script.
return setmetatable(M, {
  __call = function(_, text)
    local said = base.json_decode(text)
    script(said.file, said.arguments or {})
    return ''
  end,
})
