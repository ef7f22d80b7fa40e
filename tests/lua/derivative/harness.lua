--- Compares the gradients of one operator call by its derivative rule (trace, lower, generated Lua)
--- with LibTorch's autograd. The call sits in a model whose parameters are the operands that may
--- require gradients; its loss is a weighted sum of all outputs.
local Eager = require 'nnscaler.runtime.eager'
local Program = require 'nnscaler.runtime.program'
local T = require 'nnscaler.tensor'
local door = require 'nnscaler._C.tensor'
local lower = require 'nnscaler._C.lower'
local nn = require 'nnscaler.nn'
local ops = require 'nnscaler.ops'
local sorted_keys = require('nnscaler.sorted').sorted_keys

local aten = ops.aten
local M = {}

--- How gradients reach the call: dense, as an expanded scalar, transposed, as a part of a larger
--- tensor; `views` gives it transposed operands beside.
M.forms = { 'dense', 'expanded', 'turned', 'cut', 'views' }

local function operator(name)
  local space, op = name:match '^(.-)::(.+)$'
  return ops[space][op]
end

local function is_real(x) return x.dtype:find '^b?float' ~= nil end
local function is_complex(x) return x.dtype:find '^complex' ~= nil end

local function reversed(x)
  local order = {}
  for d = x:dim() - 1, 0, -1 do order[#order + 1] = d end
  return x:permute(order)
end

-- Tensors of a call's arguments in order, tables of tensors and keyword arguments walked.
local function operands(args, visit)
  local function walk(value)
    if T.is_tensor(value) then
      return visit(value)
    elseif type(value) == 'table' then
      local copy = {}
      for _, key in ipairs(sorted_keys(value)) do copy[key] = walk(value[key]) end
      return copy
    end
    return value
  end
  local copy = { n = args.n }
  for i = 1, args.n do copy[i] = walk(args[i]) end
  return copy
end

--- Positions (among the tensors of the call) of the operands that may require gradients.
---@param call table
---@return integer[]
function M.candidates(call)
  local fixed, list, at = {}, {}, 0
  for _, k in ipairs(call.fixed or {}) do fixed[k] = true end
  operands(call.args, function(x)
    at = at + 1
    if (is_real(x) or is_complex(x)) and not fixed[at] then list[#list + 1] = at end
    return x
  end)
  return list
end

-- One model of the call. `wanted` are the operands with gradients, `form` how gradients come,
-- `outputs` which results reach the loss (nil: all); `fn` what is called, the operator by default.
local function make(call, wanted, form, outputs, fn)
  local Model = nn.class 'Call'
  local weights = {}
  local sample = {}

  function Model:init()
    local at = 0
    self.operands = {}
    operands(call.args, function(x)
      at = at + 1
      local name = 'x' .. at
      local turn = form == 'views' and x:dim() > 1
      local stored = is_complex(x) and aten.view_as_real(x) or turn and reversed(x) or x
      stored = stored:contiguous():clone()
      self.operands[at] = {
        name = name, complex = is_complex(x), turn = turn and not is_complex(x),
      }
      if wanted[at] then
        self[name] = nn.Parameter { shape = stored.shape, dtype = stored.dtype }
        self[name].data = stored
      elseif call.buffers and call.buffers[at] then
        self:register_buffer(name, { shape = stored.shape, dtype = stored.dtype })
        self[name].data = stored
      else
        sample[name] = stored
      end
    end)
  end

  local function loss_of(self, results)
    local loss
    for i, y in ipairs(results) do
      if y and (is_real(y) or is_complex(y)) and (not outputs or outputs[i]) then
        if is_complex(y) then y = aten.view_as_real(y) end
        if (form == 'turned' or form == 'views') and y:dim() > 1 then y = reversed(y) end
        if form == 'cut' and y:dim() > 0 then y = T.cat({ y, y * 2 }, -1) end
        local term
        if form == 'expanded' then
          term = y:sum() * 0.7
        else
          local name = ('w%d'):format(i)
          if not sample[name] then
            local generator = T.generator(100 + i)
            weights[name] = weights[name]
              or T.randn(y.shape, { dtype = 'float64', generator = generator })
            sample[name] = weights[name]
          end
          term = (y * self.sample[name]):sum()
        end
        loss = loss and loss + term or term
      end
    end
    return loss
  end

  local function apply(self)
    local at = 0
    local args = operands(call.args, function()
      at = at + 1
      local o = self.operands[at]
      local x = rawget(self, o.name) or self[o.name] or self.sample[o.name]
      if o.complex then return aten.view_as_complex(x) end
      if o.turn then return reversed(x) end
      return x
    end)
    local results = { (fn or operator(call.op))(unpack(args, 1, args.n)) }
    if type(results[1]) == 'table' and not T.is_tensor(results[1]) then results = results[1] end
    return results
  end

  function Model:forward(s)
    self.sample = s
    local results = apply(self)
    local loss = loss_of(self, results)
    -- A term of its own keeps the loss differentiable where the call is not.
    return loss and loss + self.one * 0 or self.one * 1, { tokens = 2, results = results }
  end

  local model = Model()
  model.one = nn.Parameter { shape = {}, dtype = 'float64' }
  model.one.data = T.scalar(1, 'float64')
  -- Weights of the outputs depend on their shapes: a first run of the call finds them.
  model:assign_paths()
  model.sample = sample
  door.push_module '' -- operators that draw noise do so in a forward only
  local ok, problem = pcall(T.no_grad, function() loss_of(model, apply(model)) end)
  door.pop_module()
  if not ok then error(problem, 0) end
  return model, sample
end

--- The model of a call, and its sample; see `make`.
M.model = make

--- Largest difference, relative to the largest expected number; NaN equals NaN here.
---@param want nnscaler.Tensor
---@param got nnscaler.Tensor
---@return number
function M.gap(want, got)
  if want:numel() == 0 then return 0 end
  local same = want:eq(got):logical_or(want:isnan():logical_and(got:isnan()))
  local difference = (want - got):abs():masked_fill(same, 0):amax():item()
  local scale = want:abs():masked_fill(want:isfinite():logical_not(), 0):amax():item()
  if difference ~= difference then return math.huge end
  return difference / math.max(scale, 1e-3)
end

M.SEED = 5

--- One training step; a parameter without a gradient has `false`.
---@param engine nnscaler.Engine
---@param sample table
---@return table<string, nnscaler.Tensor|false> gradients, table result
function M.run(engine, sample)
  local result = engine:train_step({ sample }, { step = 3, seed = M.SEED })
  local grads = {}
  for _, p in ipairs(engine.parameters) do grads[p.name] = engine:grad(p.name) or false end
  return grads, result
end

---Compares one way of asking for gradients; returns what is wrong, or nil, and the operators that
---ran again under autograd.
---@param call table { op, args, fixed, buffers, tolerance, reference }; `reference` stands in for
---  an operator of ours that autograd does not know
---@param wanted integer[] operands with gradients
---@param form string
---@param outputs? table<integer, boolean>
---@return string? problem, string[] fallbacks
function M.compare(call, wanted, form, outputs)
  local flags = {}
  for _, k in ipairs(wanted) do flags[k] = true end
  local job = { seed = M.SEED, device = 'cpu' }
  local model, sample = make(call, flags, form, outputs, call.reference)
  local want, eager_result = M.run(Eager.new(model, job), sample)

  local fallbacks = {}
  local skeleton = lower.skeleton
  lower.skeleton = function(...)
    local made = skeleton(...)
    for _, f in ipairs(made:project():fallbacks()) do fallbacks[#fallbacks + 1] = f.op end
    return made
  end
  local again, same_sample = make(call, flags, form, outputs)
  local ok, got, result = pcall(M.run, Program.new(again, job), same_sample)
  lower.skeleton = skeleton
  if not ok then return tostring(got), fallbacks end

  local tolerance = call.tolerance or 1e-11
  local scale = math.max(1, math.abs(eager_result.loss))
  if math.abs(eager_result.loss - result.loss) > tolerance * scale then
    return ('loss %.17g, expected %.17g'):format(result.loss, eager_result.loss), fallbacks
  end
  for _, k in ipairs(wanted) do
    local name = 'x' .. k
    local w, g = want[name], got[name]
    if not w or not g then
      local zero = call.constant and w and w:abs():sum():item() == 0
      if (w or g) and not zero then
        return ('operand %d: %s has a gradient, %s has none'):format(k, w and 'autograd'
          or 'the rule', w and 'the rule' or 'autograd'), fallbacks
      end
    elseif table.concat(w.shape, ' ') ~= table.concat(g.shape, ' ') or w.dtype ~= g.dtype then
      return ('operand %d: %s[%s], expected %s[%s]'):format(k, g.dtype, table.concat(g.shape, ', '),
        w.dtype, table.concat(w.shape, ', ')), fallbacks
    else
      local d = M.gap(w, g)
      if d > tolerance then
        return ('operand %d: differs by %.3g\nwant %s\ngot  %s'):format(k, d, tostring(w),
          tostring(g)), fallbacks
      end
    end
  end
  return nil, fallbacks
end

-- Of a tensor argument list, the same call with real operands rounded to a dtype.
local function rounded(call, dtype, back)
  local copy = {}
  for key, value in next, call do copy[key] = value end
  copy.args = operands(call.args, function(x)
    if not is_real(x) then return x end
    x = x:to(dtype)
    return back and x:to(back) or x
  end)
  return copy
end

---Compares the gradients of a call in bfloat16 with those in float64 of the same numbers; autograd
---in bfloat16 says how much is lost by rounding. Returns what is wrong; nil and false where
---LibTorch cannot do the call in bfloat16 itself.
---@param call table as for compare
---@return string? problem, boolean? compared
function M.compare_rounded(call)
  local flags, job, short = {}, { seed = M.SEED, device = 'cpu' }, 'bfloat16'
  local wanted = M.candidates(call)
  for _, k in ipairs(wanted) do flags[k] = true end
  local exact, exact_sample = make(rounded(call, short, 'float64'), flags, 'dense', nil,
    call.reference)
  local want = M.run(Eager.new(exact, job), exact_sample)
  local possible, theirs = pcall(function()
    local model, sample = make(rounded(call, short), flags, 'dense', nil, call.reference)
    return (M.run(Eager.new(model, job), sample))
  end)
  if not possible then return nil, false end
  local model, sample = make(rounded(call, short), flags, 'dense')
  local ok, got = pcall(M.run, Program.new(model, job), sample)
  if not ok then return tostring(got) end
  for _, k in ipairs(wanted) do
    local w, t, g = want['x' .. k], theirs['x' .. k], got['x' .. k]
    if w and g then
      local complex = t and t.dtype == 'float64'
      if g.dtype ~= (complex and 'float64' or 'float32') then
        return ('operand %d: gradient in %s'):format(k, g.dtype)
      end
      local lost = t and M.gap(w, t:to 'float64') or 0
      local d = M.gap(w, g:to 'float64')
      if d > 2 * lost + 2 ^ -6 then
        return ('operand %d: off by %.3g, autograd in bfloat16 by %.3g'):format(k, d, lost)
      end
    end
  end
  return nil, true
end

-- All non-empty subsets of up to three things; of more, each alone and all together.
local function subsets(list)
  local result = {}
  if #list <= 3 then
    for mask = 1, 2 ^ #list - 1 do
      local subset = {}
      for i, item in ipairs(list) do
        if math.floor(mask / 2 ^ (i - 1)) % 2 == 1 then subset[#subset + 1] = item end
      end
      result[#result + 1] = subset
    end
  else
    for _, item in ipairs(list) do result[#result + 1] = { item } end
    result[#result + 1] = list
  end
  return result
end

---All ways of one call: every form with all operands, every subset of operands, every subset of
---outputs; or one way only. Returns the problems, the number of runs and the fallbacks that ran.
---@param call table
---@param once? boolean
---@return string[] problems, integer runs, table<string, boolean> fallbacks
function M.check(call, once)
  local problems, runs, fallbacks = {}, 0, {}
  local all = M.candidates(call)
  assert(#all > 0, 'no operand can have a gradient')
  local function compare(wanted, form, outputs)
    runs = runs + 1
    local problem, used = M.compare(call, wanted, form, outputs)
    for _, op in ipairs(used) do fallbacks[op] = true end
    if problem then
      local marks = {}
      for i = 1, 8 do
        if outputs and outputs[i] then marks[#marks + 1] = i end
      end
      problems[#problems + 1] = ('%s, gradients of operands %s, outputs %s: %s'):format(form,
        table.concat(wanted, ' '), outputs and table.concat(marks, ' ') or 'all', problem)
    end
  end
  if once then
    compare(all, 'dense')
    return problems, runs, fallbacks
  end
  for _, form in ipairs(call.forms or M.forms) do compare(all, form) end
  for _, subset in ipairs(subsets(all)) do
    if #subset < #all then compare(subset, 'dense') end
  end
  if call.outputs then
    local list = {}
    for i = 1, call.outputs do list[i] = i end
    for _, subset in ipairs(subsets(list)) do
      local chosen = {}
      for _, i in ipairs(subset) do chosen[i] = true end
      if #subset < #list then compare(all, 'dense', chosen) end
    end
  end
  return problems, runs, fallbacks
end

return M
