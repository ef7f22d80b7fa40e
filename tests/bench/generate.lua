--- Speed of `generate` with fresh weights: prints one JSON object with tokens_per_s and cpu_s of a
--- token. One sequence that begins with one token; temperature 0.8.
--- Run: nnscaler tests/bench/generate.lua PRESET VOCAB TOKENS THREADS
local GPT = require 'nnscaler.models.gpt'
local base = require 'nnscaler._C.base'
local door = require 'nnscaler._C.tensor'
local generate = require 'nnscaler.commands.generate'

local sizes = {
  tiny = { layers = 4, heads = 4, width = 64, block = 32 },
  baby = { layers = 6, heads = 6, width = 384, block = 256 },
}

local size = sizes[arg[1]]
size.vocab = tonumber(arg[2])
local tokens = tonumber(arg[3])
door.set_num_threads(tonumber(arg[4]))
local model = GPT(size):materialize(0):eval()

local function sample()
  generate.sample(model, nil, { prompt = '0', tokens = tokens, temperature = 0.8, seed = 0 },
    function() end)
end

sample()
local wall, cpu = base.clock(), os.clock()
sample()
print(base.json_encode { tokens_per_s = tokens / (base.clock() - wall),
  cpu_s = (os.clock() - cpu) / tokens })
