-- Kernels whose results do not depend on the number of threads.
local aten = require('nnscaler.ops').aten
local door = require 'nnscaler._C.tensor'

-- What fn returns, asserted to be the same on one thread and on two.
---@param fn fun(): any
return function(fn)
  local before = door.get_num_threads()
  door.set_num_threads(1)
  local one = { fn() }
  door.set_num_threads(2)
  local two = { fn() }
  door.set_num_threads(before)
  for i = 1, #one do
    assert(aten.allclose(one[i], two[i], 0, 0, true), 'two threads make other bits than one')
  end
  return unpack(one)
end
