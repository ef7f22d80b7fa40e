-- The schemas that the planner core knows are those of LibTorch's registry. Where they are old:
--   NNSCALER_UPDATE=1 build/nnscaler test tests/lua/schemas_spec.lua
local base = require 'nnscaler._C.base'
local trace = require 'nnscaler._C.trace'

local path = 'src/operators/schemas.inc'

it('src/operators/schemas.inc lists the schemas of the LibTorch in use', function()
  local lines = { '// Written by tests/lua/schemas_spec.lua from the registry of LibTorch.\n' }
  for _, schema in ipairs(trace.schemas()) do
    lines[#lines + 1] = ('R"~(%s)~",\n'):format(schema)
  end
  local text = table.concat(lines)
  assert.is_true(#lines > 1500)
  if os.getenv 'NNSCALER_UPDATE' then base.file_write(path, text) end
  assert.equal(text, base.file_read(path))
end)
