--- Checks an operator that a module registers: that it is pure, that its shapes are those inferred,
--- that its derivative is autograd's, and every way of splitting it against the whole, on rank
--- threads.
local base = require 'nnscaler._C.base'
local comm = require 'nnscaler._C.comm'
local fail = require 'nnscaler.fail'
local job = require 'nnscaler.job'
local register_op = require 'nnscaler.register_op'
local tensor = require 'nnscaler.tensor'
local trace = require 'nnscaler.trace'

local M = {}

--- The registration of an operator, after its module has run.
---@param name string
---@param module? string `require` path, or a recipe (.lua)
---@return { spec: nnscaler.OperatorSpec, call: function }
function M.find(name, module)
  if module and module:match '%.lua$' then
    local ok, message = job.evaluate(module, {})
    if not ok then error(message, 0) end
  elseif module then
    require(module)
  end
  local found = register_op.specs[name]
  if not found then
    fail('usage', 'verify.op', ("'%s' is not registered"):format(name),
      'name the module that registers it')
  end
  if not found.spec.inputs then
    fail('usage', 'verify.op', ("'%s' has no `inputs` to verify it with"):format(name),
      'give register_op a function inputs(generator) that returns its arguments')
  end
  return found
end

--- Arguments of the operator, the same in every process.
---@param found table of find
---@return any[]
function M.arguments(found) return found.spec.inputs(tensor.generator(17)) end

local function same(a, b)
  return a.dtype == b.dtype and table.concat(a.shape, ',') == table.concat(b.shape, ',')
    and a:equal(b)
end

local function check_pure(found, problems)
  local args, again = M.arguments(found), M.arguments(found)
  local first = { found.call(unpack(args)) }
  local second = { found.call(unpack(args)) }
  for i, x in ipairs(first) do
    if not same(x, second[i]) then
      problems[#problems + 1] = ('result %d differs between two calls: it is not pure'):format(i)
    end
  end
  for i, x in ipairs(args) do
    if tensor.is_tensor(x) and not same(x, again[i]) then
      problems[#problems + 1] = ('it writes to its argument %d: it is not pure'):format(i)
    end
  end
  return first
end

-- The node of the call, and where its annotation lets it be split.
local function check_shapes(found, name, results, problems)
  local graph = trace(function(...) return found.call(...) end, M.arguments(found),
    { training = false })
  local node
  for _, n in ipairs(graph:nodes()) do
    if n.op == name or n.op:match '^[^.]+' == name then node = n end
  end
  local values = graph:values()
  for i, id in ipairs(node.outputs) do
    local said, real = values[id + 1], results[i]
    local a = said.dtype .. '[' .. table.concat(said.shape, ', ') .. ']'
    local b = real and real.dtype .. '[' .. table.concat(real.shape, ', ') .. ']' or 'nothing'
    if a ~= b then problems[#problems + 1] = ('result %d is %s; inferred %s'):format(i, b, a) end
  end
  return graph:splits(node.id)
end

local function smallest_factor(n)
  for k = 2, n do
    if n % k == 0 then return k end
  end
end

-- Runs the operator split on rank threads (or whole on one) against autograd.
local function check_run(name, module, parts, place, problems, what)
  local results = comm.run_local(parts, 'nnscaler.verify.registered_rank', base.json_encode {
    name = name, module = module, parts = parts, input = place and place.input,
    dim = place and place.dim,
  })
  for _, text in ipairs(results) do
    local result = base.json_decode(text)
    if result.worst ~= result.worst or result.worst > 1e-11 then
      problems[#problems + 1] = ('%s: %s differs by %.3g'):format(what, result.where, result.worst)
      return
    end
  end
end

---@class nnscaler.verify.OperatorReport
---@field annotation string|nil the alternative that fits
---@field splits integer how many ways of splitting were run
---@field problems string[] empty: all is well

---Checks a registered operator.
---@param name string 'mylib::swiglu'
---@param module string of what registers it: `require` path, or a recipe (.lua)
---@return nnscaler.verify.OperatorReport
function M.check(name, module)
  local found = M.find(name, module)
  local report = { splits = 0, problems = {} }
  local results = check_pure(found, report.problems)
  if #report.problems > 0 then return report end -- nothing else would mean anything
  local splits = check_shapes(found, name, results, report.problems)
  report.annotation = splits.annotation
  check_run(name, module, 1, nil, report.problems, 'derivative')
  for _, place in ipairs(splits.splits) do
    local parts = smallest_factor(place.length)
    if parts then
      report.splits = report.splits + 1
      check_run(name, module, parts, place, report.problems,
        ('split of input %d dim %d into %d'):format(place.input, place.dim, parts))
    end
  end
  return report
end

return M
