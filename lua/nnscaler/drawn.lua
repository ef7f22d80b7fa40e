--- Random operators that ATen draws from hidden state, composed of draws by key, seed, step and
--- place (F.rand_like, F.bernoulli): `ops.aten` gives these under ATen's names and arguments.
local fail = require 'nnscaler.fail'

return function(aten)
  local M = {}

  local function check(what, p)
    if type(p) ~= 'number' or p < 0 or p > 1 then
      fail('model', 'functional.' .. what, ('p is %s; expected a number from 0 to 1')
        :format(tostring(p)))
    end
  end

  --- Dropout that keeps mean and variance of what selu makes (Klambauer 2017, section 3).
  function M.alpha_dropout(x, p, train)
    check('alpha_dropout', p)
    if not train or p == 0 then return x end
    if p == 1 then return x * 0 end
    local alpha = 1.7580993408473766
    local a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    local kept = aten.bernoulli(aten.full_like(x, 1 - p))
    return x * kept * a + (kept - (1 - p)) * (alpha * a)
  end

  --- Zeroes whole channels (dimension 1 of [batch, channels, …]) with probability p.
  function M.feature_dropout(x, p, train)
    check('feature_dropout', p)
    if not train or p == 0 then return x end
    if p == 1 then return x * 0 end
    local shape = {}
    for d, size in ipairs(x.shape) do shape[d] = d <= 2 and size or 1 end
    return x * (aten.bernoulli(aten.new_full(x, shape, 1 - p)) / (1 - p))
  end

  --- Leaky relu whose slope below 0 is drawn uniformly in training, else the middle.
  function M.rrelu(x, lower, upper, training)
    lower, upper = lower or 1 / 8, upper or 1 / 3
    if not training then return aten.leaky_relu(x, (lower + upper) / 2) end
    return aten.where(aten.ge(x, 0), x, x * (aten.rand_like(x) * (upper - lower) + lower))
  end

  --- Indices drawn from rows of probabilities (which need not sum to 1) of shape [rows, classes] or
  --- [classes]: the largest of log p plus Gumbel noise.
  function M.multinomial(p, samples, replacement)
    local scores = aten.log(p)
    if replacement then
      local shape = { unpack(p.shape) }
      table.insert(shape, #shape, samples)
      scores = aten.expand(aten.unsqueeze(scores, -2), shape)
    end
    local drawn = scores - aten.log(-aten.log(aten.rand_like(scores)))
    if replacement then return aten.argmax(drawn, -1) end
    return select(2, aten.topk(drawn, samples))
  end

  return M
end
