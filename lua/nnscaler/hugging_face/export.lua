--- Writes a model folder of the `transformers` library: config.json, safetensors in shards of a
--- limited size with their index, and the tokenizer of the data or of the folder that the model
--- came from. A shard is in memory at a time.
local C = require 'nnscaler._C.checkpoint'
local base = require 'nnscaler._C.base'
local fail = require 'nnscaler.fail'
local hugging_face = require 'nnscaler.hugging_face'

local M = {}

local area = 'hugging_face.export'

local kept_files = { 'tokenizer.json', 'tokenizer.model', 'tokenizer_config.json',
  'special_tokens_map.json', 'generation_config.json', 'vocab.json', 'merges.txt' }

local widths = { float64 = 8, float32 = 4, bfloat16 = 2, float16 = 2 } -- bytes of a weight

-- { name, read } of each tensor of the format, in the model's order. Of one of our weights that the
-- format has in pieces, the whole is read once.
local function listed(model, family, read, dtype)
  local list, held, of = {}, nil, nil
  local function whole(entry)
    if of ~= entry.name then held, of = read(entry.name), entry.name end
    return held:view(entry.file_shape or held.shape)
  end
  local function converted(x) return dtype and x:to(dtype) or x end
  for _, entry in ipairs(model:named_parameters()) do
    local name, transposed = family.stored(entry.name)
    if name:find '%%d' then
      for i = 0, entry.param.shape[1] - 1 do
        list[#list + 1] = { name = name:format(i), read = function()
          return converted(whole(entry):select(0, i):contiguous())
        end }
      end
    else
      list[#list + 1] = { name = name, read = function()
        held, of = nil, nil
        local x = read(entry.name)
        x = converted(x:view(entry.file_shape or x.shape))
        return transposed and x:t():contiguous() or x
      end }
    end
  end
  return list
end

-- Writes shards of at most `limit` bytes, unless one weight has more; returns { name, file }, the
-- bytes and the shards. Names of files hold the number of shards, so they are given at the end.
local function write_shards(folder, list, limit)
  local shards, map, total, shard, held = 0, {}, 0, {}, 0
  local function flush()
    if #shard == 0 then return end
    shards = shards + 1
    C.write_safetensors(('%s/shard-%d.writing'):format(folder, shards), shard, { format = 'pt' })
    for _, item in ipairs(shard) do map[#map + 1] = { item[1], shards } end
    shard, held = {}, 0
  end
  for _, item in ipairs(list) do
    local x = item.read()
    local bytes = x:numel() * widths[x.dtype]
    if held + bytes > limit then flush() end
    shard[#shard + 1], held, total = { item.name, x }, held + bytes, total + bytes
  end
  flush()
  for _, item in ipairs(map) do
    item[2] = shards == 1 and 'model.safetensors'
      or ('model-%05d-of-%05d.safetensors'):format(item[2], shards)
  end
  for i = 1, shards do
    local name = shards == 1 and 'model.safetensors'
      or ('model-%05d-of-%05d.safetensors'):format(i, shards)
    assert(os.rename(('%s/shard-%d.writing'):format(folder, i), folder .. '/' .. name))
  end
  return map, total, shards
end

local function write_index(folder, map, total)
  local weight_map = {}
  for _, item in ipairs(map) do weight_map[item[1]] = item[2] end
  base.file_write(folder .. '/model.safetensors.index.json', base.json_encode({
    metadata = { total_size = total }, weight_map = weight_map }, 2) .. '\n')
end

local function check_folder(folder)
  local what = base.file_exists(folder)
  if what == 'folder' and #base.list_folder(folder) == 0 then return end
  if what ~= nil then
    fail('usage', area, ("'%s' is there already; expected a folder to make"):format(folder))
  end
end

local function copy(from, to)
  if from and base.file_exists(from) == 'file' then base.file_write(to, base.file_read(from)) end
end

---@class nnscaler.hugging_face.ExportOptions
---@field model nnscaler.nn.Module its structure; weights need no values
---@field read fun(name: string): nnscaler.Tensor a weight by its name in the model, in the model's
---  shape or that of files
---@field dtype? string floating weights are converted to it; by default they stay as they are
---@field shard_bytes? integer 2 GiB by default
---@field tokenizer? string path of the tokenizer of the data, to stand beside the model

--- Writes the folder.
---@param folder string that is not there, or is empty
---@param options nnscaler.hugging_face.ExportOptions
---@return { tensors: integer, bytes: integer, files: integer }
function M.write(folder, options)
  local model, dtype = options.model, options.dtype
  local family = hugging_face.family(model)
  if not family then
    fail('usage', area, ("a '%s' has no form in the transformers library; expected BERT, GPT or "
      .. 'Llama'):format(model.class_name))
  end
  if dtype and not widths[dtype] then
    fail('usage', area, ("dtype '%s'; expected float64, float32, bfloat16 or float16"):format(
      dtype))
  end
  local config, missing = family.config(model.arguments)
  if not config then
    fail('usage', area, ('the model cannot be written; expected %s'):format(missing))
  end
  check_folder(folder)
  base.make_folder(folder)
  local list = listed(model, family, options.read, dtype)
  local map, total, files = write_shards(folder, list, options.shard_bytes or 2 ^ 31)
  if files > 1 then write_index(folder, map, total) end
  config.architectures = { family.model_types[config.model_type] }
  config.dtype = dtype or options.read(model:named_parameters()[1].name).dtype
  config.torch_dtype = config.dtype
  for _, name in ipairs(kept_files) do
    copy(model.pretrained and model.pretrained .. '/' .. name, folder .. '/' .. name)
  end
  if options.tokenizer then
    copy(options.tokenizer, folder .. '/' .. options.tokenizer:match '[^/]*$')
  end
  base.file_write(folder .. '/config.json', base.json_encode(config, 2) .. '\n')
  return { tensors = #list, bytes = total, files = files }
end

return M
