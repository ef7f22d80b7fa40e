--- Mixed precision casts each weight once a step, under every plan: gradients and losses are those
--- of a cast in each micro-batch, bit for bit, also after weights have changed.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'

local cells = {}
for _, precision in ipairs { 'bf16-mixed', '16-mixed' } do
  for _, cell in ipairs {
    { name = 'dp 2', policy = 'dp', plan = 1 },
    { name = 'dp 2, zero 1', policy = 'dp', plan = 1, zero = 1 },
    { name = 'dp 2, zero 2', policy = 'dp', plan = 1, zero = 2 },
    { name = 'fsdp 2', policy = 'fsdp', plan = 1, gathered = true },
    { name = 'fsdp 2, recomputed', policy = 'fsdp', plan = 1, recompute = true, gathered = true },
    { name = 'dp 2, recomputed', policy = 'dp', plan = 1, recompute = true },
    { name = 'tp 2', policy = 'tp', plan = 2 },
    { name = 'pp 2', policy = 'pp', plan = 2, stages = true },
    { name = 'pp 2, recomputed', policy = 'pp', plan = 2, stages = true, recompute = true },
    { name = 'megatron 2', policy = 'megatron', plan = 2 },
  } do
    cell.precision, cell.ranks = precision, 2
    cells[#cells + 1] = cell
  end
end

describe('casts of weights', function()
  local ranks = {}
  setup(function()
    for r, text in ipairs(comm.run_local(2, 'tests.equivalence.precision.casts_rank',
      base.json_encode(cells))) do
      ranks[r] = base.json_decode(text)
    end
  end)

  for i, cell in ipairs(cells) do
    it(('%s under %s run once a step, with the same bits'):format(cell.precision, cell.name),
      function()
        local all = 0
        for r = 1, 2 do
          local got = ranks[r][i]
          assert.same(got.apart, got.joint)
          assert.same(got.later_apart, got.later)
          assert.same(got.losses_apart, got.losses)
          assert.equal(got.expected, got.ran)
          assert.equal(0, got.left)
          assert.equal(0, got.kept)
          all = all + got.casts
        end
        -- Four weights and biases of products a block, and the table as that of the last layer:
        -- where its rows are looked up too, one that rests in shards is gathered as it is.
        local each = 17 - (cell.gathered and 1 or 0)
        assert.equal(cell.stages and each or 2 * each, all)
      end)
  end
end)
