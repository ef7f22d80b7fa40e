--- `nnscaler generate`: samples text from a checkpoint, whose model is made by the job that wrote
--- it, or from a model folder of the `transformers` library. The model runs eagerly; its forward
--- without targets has to return nil and the logits.
local T = require 'nnscaler.tensor'
local characters = require 'nnscaler.data.characters'
local checkpoint = require 'nnscaler.checkpoint'
local fail = require 'nnscaler.fail'
local hugging_face = require 'nnscaler.hugging_face'
local log = require 'nnscaler.log'
local saved_model = require 'nnscaler.trainer.saved_model'
local store = require 'nnscaler.runtime.store'
local shapes = require 'nnscaler.checkpoint.shapes'
local tokenizer = require 'nnscaler.data.tokenizer'

local M = {}

---@class nnscaler.generate.Opts
---@field checkpoint string folder of a checkpoint, or one with `last`
---@field prompt? string
---@field tokens? integer
---@field temperature? number
---@field top_k? integer
---@field seed? integer
---@field log_level? string

--- Makes the model of a checkpoint with its weights.
---@param saved nnscaler.Checkpoint
---@return nnscaler.nn.Module
function M.model(saved)
  local model, made = saved_model.make(saved)
  model:materialize(made.seed or 0, 'cpu')
  local engine = { parameters = {}, buffers = {} }
  for i, entry in ipairs(model:named_parameters()) do
    engine.parameters[i] = { name = entry.name, data = entry.param }
  end
  for i, entry in ipairs(model:named_buffers()) do
    engine.buffers[i] = { name = entry.name, data = entry.buffer }
  end
  local weights = shapes.to_file(model, store.of_engine(model, engine):weights())
  saved:check(weights)
  saved:copy_to(weights)
  return model:eval()
end

-- A tokenizer whose ids the model has.
local function checked(code, model)
  if model.vocab and code.vocab > model.vocab then
    fail('data', 'generate.tokenizer', ("'%s' has %d tokens, the model %d"):format(code.path,
      code.vocab, model.vocab), 'give the tokenizer that the model was trained with')
  end
  return code
end

-- Text to ids and back; ids themselves, as numbers, where the data have no characters.
local function codec(vocabulary, model)
  if vocabulary and vocabulary.type == 'tokenizer' then
    return checked(tokenizer(vocabulary.path), model)
  end
  if vocabulary and vocabulary.type == 'characters' then return characters.decoder(vocabulary) end
  return {
    encode = function(_, text)
      local ids = {}
      for word in text:gmatch '%S+' do
        ids[#ids + 1] = tonumber(word)
          or fail('usage', 'generate.prompt', ("'%s' is not a token id; the data of this model "
            .. 'have no characters'):format(word))
      end
      return ids
    end,
    decode = function(_, ids) return table.concat(ids, ' ') .. ' ' end,
  }
end

local function sample(logits, opts, generator)
  if opts.temperature == 0 then return logits:argmax():item() end
  logits = logits / opts.temperature
  if opts.top_k and opts.top_k < logits.shape[1] then
    local least = logits:topk(opts.top_k)[opts.top_k - 1]
    logits = logits:masked_fill(logits:lt(least), -math.huge)
  end
  return logits:softmax(-1):multinomial(1, { generator = generator }):item()
end

-- Returns a function that gives the logits of the token that follows on a text, float64[vocab].
-- Each call gets the text of the call before and more.
local function reader(model)
  local cache
  return function(ids)
    local first = model.block and math.max(1, #ids - model.block + 1) or 1
    if model.new_cache and (not cache or #ids > cache.capacity) then
      cache = model:new_cache(#ids) -- nothing: the text has left the window, so positions move
    end
    if cache then first = cache.length + 1 end
    local x = T.tensor({ { unpack(ids, first) } }, { dtype = 'int64' })
    local _, logits = model(cache and { x = x, cache = cache } or x)
    if type(logits) ~= 'userdata' then
      fail('model', 'generate.forward', ('forward without targets returned a %s second; expected '
        .. 'the logits'):format(type(logits)))
    end
    return logits[0][-1]:to 'float64'
  end
end

local function check(opts)
  if opts.temperature < 0 then
    fail('usage', 'generate', ('temperature %g; expected 0 or more'):format(opts.temperature))
  end
  if opts.top_k and opts.top_k < 1 then
    fail('usage', 'generate', ('top-k %d; expected 1 or more'):format(opts.top_k))
  end
  if opts.tokens < 0 then
    fail('usage', 'generate', ('%d tokens; expected 0 or more'):format(opts.tokens))
  end
end

--- Samples; `write` gets the text of each token.
---@param model nnscaler.nn.Module with its weights
---@param vocabulary table|nil of the data
---@param opts { prompt: string, tokens: integer, temperature: number, top_k?: integer,
---  seed: integer }
---@param write fun(text: string)
function M.sample(model, vocabulary, opts, write)
  check(opts)
  local code = codec(vocabulary, model)
  local ids = code:encode(opts.prompt)
  if #ids == 0 then
    fail('usage', 'generate.prompt', 'the prompt is empty; expected at least one character')
  end
  write(code:decode(ids))
  local generator, following = T.generator(opts.seed), reader(model)
  T.no_grad(function()
    for _ = 1, opts.tokens do
      local id = sample(following(ids), opts, generator)
      ids[#ids + 1] = id
      write(code:decode { id })
    end
  end)
end

--- Prints sampled text; returns the exit code.
---@param opts nnscaler.generate.Opts
---@return integer
function M.run(opts)
  log.set_level(opts.log_level or 'warning')
  local model, vocabulary
  if hugging_face.is_folder(opts.checkpoint) then
    model = hugging_face.from_pretrained(opts.checkpoint, { dtype = 'float32' })
    model = model:materialize(0):eval()
    vocabulary = { type = 'tokenizer', path = opts.checkpoint }
  else
    local saved = checkpoint.open(checkpoint.resolve(opts.checkpoint))
    model, vocabulary = M.model(saved), saved.state.vocabulary
  end
  M.sample(model, vocabulary, {
    prompt = opts.prompt or '\n', tokens = opts.tokens or 200,
    temperature = opts.temperature or 0.8, top_k = opts.top_k, seed = opts.seed or 0,
  }, function(text)
    io.write(text)
    io.flush()
  end)
  io.write '\n'
  return 0
end

return M
