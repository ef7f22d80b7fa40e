-- Arguments of our own components with values that they do not take: each is refused in words of
-- ours, never by Lua, LibTorch or a C function.
local base = require 'nnscaler._C.base'
local job = require 'nnscaler.job'
local trainer = require 'nnscaler.trainer'

local mlp = { 'model.args.sizes', 'model.args.activation', 'model.args.dropout',
  'dataset.args.size', 'dataset.args.width', 'dataset.args.classes', 'dataset.args.seed',
  'dataset.args.foo', 'optimizer.args.lr', 'optimizer.args.momentum', 'optimizer.args.weight_decay',
  'optimizer.args.groups', 'optimizer.type', 'model.type', 'dataset.type', 'lr_scheduler.type',
  'hook', 'hook.type', 'log', 'init_module', 'forward_args', 'pas_policy', 'pas_config' }
local gpt = { 'model.args.vocab', 'model.args.layers', 'model.args.heads', 'model.args.width',
  'model.args.block', 'model.args.dropout', 'model.args.foo', 'dataset.args.vocab',
  'dataset.args.block', 'dataset.args.seed', 'optimizer.args.betas', 'optimizer.args.eps',
  'optimizer.args.groups.0.match', 'optimizer.args.groups.0.lr', 'lr_scheduler.args.warmup_steps',
  'lr_scheduler.args.min_lr', 'lr_scheduler.args.foo' }

local jobs = {
  [mlp] = 'model: { type: mlp, args: { sizes: [4, 2] } }\noptimizer: sgd\n'
    .. 'dataset: { type: random_samples, args: { size: 8, width: 4, classes: 2 } }\n',
  [gpt] = 'model: { type: gpt, args: { vocab: 16, layers: 1, heads: 2, width: 8, block: 8 } }\n'
    .. 'dataset: { type: random_tokens, args: { size: 8, block: 8, vocab: 16 } }\n'
    .. "optimizer: { type: adamw, args: { groups: [{ match: '*.bias' }] } }\n"
    .. 'lr_scheduler: { type: cosine, args: { warmup_steps: 1 } }\n',
}

describe('a value that a component does not take', function()
  local path = os.tmpname() .. '.yaml'
  teardown(function() os.remove(path) end)

  for _, keys in ipairs { mlp, gpt } do
    for _, key in ipairs(keys) do
      it('is refused in words of ours: ' .. key, function()
        base.file_write(path, jobs[keys] .. 'max_train_steps: 1\neager: true\n'
          .. 'log_level: error\nenable_progress_bar: false\ncheckpoint: { no_save: true }\n')
        for _, value in ipairs { 'x', '[1, x]', '{ a: 1 }', '-1', '1.5' } do
          local ok, err = pcall(function()
            trainer.new(job.load(path, { key .. '=' .. value })):run()
          end)
          local said = ('%s=%s: %s'):format(key, value, tostring(err))
          if not ok then
            assert.equal('table', type(err), said)
            assert.is_true(err.kind ~= 'internal', said)
            assert.matches('^%[[%w_.%[%]]+%] ', err.message, 1, false)
            for _, words in ipairs { 'bad argument', 'attempt to', 'json.exception' } do
              assert.is_nil(said:find(words, 1, true), said)
            end
          end
        end
      end)
    end
  end
end)
