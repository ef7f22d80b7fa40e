--- A test under every instruction set that this processor has for our kernels.
local door = require 'nnscaler._C.tensor'

---@param it fun(name: string, test: fun()) that of the spec
---@param name string
---@param test fun()
return function(it, name, test)
  for _, isa in ipairs(door.build_info().isas) do
    it(name .. ', ' .. isa, function()
      door.choose_isa(isa)
      assert(isa == door.build_info().isa)
      local ok, message = pcall(test)
      door.choose_isa ''
      if not ok then error(message, 0) end
    end)
  end
end
