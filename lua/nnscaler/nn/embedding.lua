--- Tables of rows that are picked by index, one by one or in bags.
local F = require 'nnscaler.functional'
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = {}

--- Rows of a table, picked by index.
---@class nnscaler.nn.Embedding : nnscaler.nn.Module
---@field weight nnscaler.Tensor [count, width]
M.Embedding = Module.class 'Embedding'

---@param count integer rows of the table
---@param width integer
---@param options? { padding_idx?: integer, init?: table, dtype?: string } padding_idx: row that
---   gets no gradient; its first value is drawn like the others'
function M.Embedding:init(count, width, options)
  check.integer('nn.Embedding', 'count', count)
  check.integer('nn.Embedding', 'width', width)
  local o = check.options('nn.Embedding', options,
    { padding_idx = check.none, init = init.normal(), dtype = 'float32' })
  if o.padding_idx ~= nil then
    self.padding_idx = check.row('nn.Embedding', o.padding_idx, count)
  end
  self.weight = kinds.parameter { shape = { count, width }, dtype = o.dtype, init = o.init }
end

---@param index nnscaler.Tensor integers [...]
---@return nnscaler.Tensor # [..., width]
function M.Embedding:forward(index)
  return aten.embedding(self.weight, index, self.padding_idx)
end

--- Sums, means or greatest elements of the rows of each bag of indices.
---@class nnscaler.nn.EmbeddingBag : nnscaler.nn.Module
---@field weight nnscaler.Tensor [num_embeddings, embedding_dim]
M.EmbeddingBag = Module.class 'EmbeddingBag'

---@param num_embeddings integer rows of the table
---@param embedding_dim integer
---@param options? { mode?: 'sum'|'mean'|'max', include_last_offset?: boolean,
---   padding_idx?: integer, init?: table, dtype?: string } mode: mean by default; padding_idx:
---   index that counts for nothing
function M.EmbeddingBag:init(num_embeddings, embedding_dim, options)
  local area = 'nn.EmbeddingBag'
  check.integer(area, 'num_embeddings', num_embeddings)
  check.integer(area, 'embedding_dim', embedding_dim)
  local o = check.options(area, options, { mode = 'mean', include_last_offset = false,
    padding_idx = check.none, init = init.normal(), dtype = 'float32' })
  self.mode = check.one_of(area, 'mode', o.mode, { 'sum', 'mean', 'max' })
  self.include_last_offset = o.include_last_offset
  if o.padding_idx ~= nil then
    self.padding_idx = check.row(area, o.padding_idx, num_embeddings)
  end
  self.weight = kinds.parameter { shape = { num_embeddings, embedding_dim }, dtype = o.dtype,
    init = o.init }
end

---@param input nnscaler.Tensor int64 [bags, length], or [indices] with offsets
---@param offsets? nnscaler.Tensor int64 [bags], where each bag begins
---@param per_sample_weights? nnscaler.Tensor as the input; with mode sum
---@return nnscaler.Tensor # [bags, embedding_dim]
function M.EmbeddingBag:forward(input, offsets, per_sample_weights)
  return F.embedding_bag(input, self.weight, offsets, { mode = self.mode,
    per_sample_weights = per_sample_weights, include_last_offset = self.include_last_offset,
    padding_idx = self.padding_idx })
end

return M
