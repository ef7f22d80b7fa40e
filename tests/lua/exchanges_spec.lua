--- Exchanges of generated programs whose sizes differ between ranks or are data: who gets what.
local on_ranks = require 'tests.equivalence.support.on_ranks'

describe('on ranks', function()
  for _, n in ipairs { 1, 2, 3, 4 } do
    local found
    setup(function() found = on_ranks(n, 'tests.lua.support.exchanges_rank', {}) end)

    it(n .. ' pieces go to the next', function()
      for r, result in ipairs(found) do
        local before = (r - 2) % n
        assert.same({ 1, before + 1, 2 }, result.shape)
        for _, x in ipairs(result.rotated) do assert.equal(before, x) end
      end
    end)

    it(n .. ' texts are folded, and unfolded', function()
      for r, result in ipairs(found) do
        local front, last = 2 * (r - 1), 2 * (2 * n - r)
        assert.same({ front, front + 1, last, last + 1 }, result.zigzag)
        assert.same({ 4 * r - 4, 4 * r - 3, 4 * r - 2, 4 * r - 1 }, result.back)
      end
    end)

    it(n .. ' counts of rows go to their ranks and back', function()
      for r, result in ipairs(found) do
        local want = {}
        for from = 0, n - 1 do
          for _ = 1, r - 1 do want[#want + 1] = { 10 * from + r - 1, r - 1 } end
        end
        want[#want + 1], want[#want + 2] = { 0, 0 }, { 0, 0 }
        assert.same(want, result.rows)
        local returned = {}
        for k = 0, n - 1 do
          for _ = 1, k do returned[#returned + 1] = { 10 * (r - 1) + k, k } end
        end
        returned[#returned + 1] = { 0, 0 }
        assert.same(returned, result.returned)
      end
    end)
  end
end)
