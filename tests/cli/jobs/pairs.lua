--- The small GPT, which compares all that it has loaded with the files, bit for bit.
local shapes = require 'nnscaler.checkpoint.shapes'

local job = dofile 'recipes/nanogpt.lua'

local function same(what, a, b)
  if not (a.dtype == b.dtype and a:equal(b)) then error(what .. ' is not what the file holds') end
end

job.hook = {
  after_load_checkpoint = function(t, saved)
    for _, w in ipairs(shapes.to_file(t.model, t.store:weights())) do
      same(w.name, w.data, saved:read(w.name))
    end
    local states, stored = {}, saved:optimizer()
    for _, s in ipairs(shapes.to_file(t.model, t.store:optimizer(t.optimizer:state()).tensors)) do
      states[s.parameter .. '/' .. s.name] = s.data
    end
    if #stored == 0 then error 'the file holds no state of the optimizer' end
    for _, s in ipairs(stored) do
      local key = s.parameter .. '/' .. s.name
      same(key, states[key], s.data)
    end
  end,
}

return job
