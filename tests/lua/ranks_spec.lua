--- Where ranks compute: a GPU each.
local ranks = require 'nnscaler.ranks'

local function place(local_rank, local_size, launcher)
  return { launcher = launcher or 'torchrun', rank = local_rank, size = local_size,
    local_rank = local_rank, local_size = local_size }
end

describe('the device of a rank', function()
  it('is the GPU of its local rank', function()
    assert.equal('cuda:0', ranks.device('cuda', place(0, 2), 2))
    assert.equal('cuda:3', ranks.device('cuda', place(3, 4), 8))
  end)

  it('is the one that the user names', function()
    assert.equal('cuda:1', ranks.device('cuda:1', place(0, 4), 2))
  end)

  it('is missing where a host has more ranks than GPUs', function()
    assert.error_matches(function() ranks.device('cuda', place(0, 4), 2) end,
      '%[comm.devices%] 4 ranks on this host, but it shows 2 GPU%(s%); expected one per rank')
  end)

  it('is left to joining where no GPU can be used, which says why', function()
    assert.equal('cuda:1', ranks.device('cuda', place(1, 2), 0))
  end)

  it('is no GPU where ranks are threads', function()
    assert.error_matches(function() ranks.device('cuda', place(0, 2, 'none'), 2) end,
      '%[comm.devices%] device is cuda, but ranks that are threads share the memory of the host')
  end)
end)
