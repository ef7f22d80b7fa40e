--- What each rank of exchanges_spec does: the exchanges of generated programs that send rows or
--- pieces to other ranks, with numbers that tell where they came from.
local T = require 'nnscaler.tensor'
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler.runtime.groups'
local launch = require 'nnscaler._C.comm'

---@return string JSON { rotated, zigzag, back, rows, returned }
return function()
  local rank, n = launch.current():rank(), launch.current():size()
  local ranks = comm.all_ranks()
  -- Pieces of different lengths: rank r has r + 1 rows of r.
  local piece = T.full({ 1, rank + 1, 2 }, rank)
  local before = (rank - 1) % n
  local rotated = comm.rotate(piece, 1, before + 1, ranks)
  -- A text of 4n tokens, told by their places.
  local text = T.arange(4 * rank, 4 * rank + 4, { dtype = 'float32' }):view { 1, 4, 1 }
  local zigzag = comm.zigzag(text, 1, ranks)
  local back = comm.zigzag(zigzag, 1, ranks, true)
  -- To rank k go k rows, of the number 10 · sender + k.
  local counts, list = {}, {}
  for k = 0, n - 1 do
    counts[k + 1] = k
    for _ = 1, k do list[#list + 1] = { 10 * rank + k, k } end
  end
  list[#list + 1] = { -1, -1 } -- stays here
  local sends = T.tensor(counts, { dtype = 'int64' })
  local receives = T.full({ n }, rank, { dtype = 'int64' })
  local rows = comm.exchange_rows(T.tensor(list), sends, receives, n * rank + 2, ranks)
  local returned = comm.exchange_rows(rows, receives, sends, #list, ranks)
  comm.flush()
  return base.json_encode { rotated = rotated:flatten():tolist(), shape = rotated.shape,
    zigzag = zigzag:flatten():tolist(), back = back:flatten():tolist(), rows = rows:tolist(),
    returned = returned:tolist() }
end
