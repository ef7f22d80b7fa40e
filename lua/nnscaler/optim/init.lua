--- Optimizers on ATen's fused kernels: one call for each parameter group. Meaning and defaults are
--- PyTorch's. A parameter whose gradient is nil is neither moved nor decayed; a frozen one is not
--- here at all.
---
--- `{ type = 'adamw', args = { lr = 1e-3, groups = { { match = '*.bias', weight_decay = 0 } } } }`
--- A group may name another `type`, so that several optimizers share the weights of a model.
--- A kind is a module { defaults, slots(options), update(self, bucket, options) }; a user's own
--- is found by `require`. `slots` says before anything runs what the kind keeps of a parameter: a
--- list of names, of tensors like the weight, or of { name =, dtype =, shape = function(shape) }
--- where they are others. A kind without `slots` keeps its own state: it is not in checkpoints, its
--- memory is unknown, and parts of weights take it only with `elementwise = true`. `whole = true`
--- says that it never takes parts; `refuses(shape)` says why a weight cannot be updated at all. Of
--- a 16-bit weight a kind with `slots` gets a float32 copy to update, its slot `master`, unless the
--- option master = false is given.
---
--- A step on whole tensors: `collect` gradients, `scale` them by 1/Σn and measure their norm (one
--- pass, squares summed in float64), `clip` (a second pass, only where the norm is too large),
--- `step`. Programs have a step of their own, of which this gives `update`. The kernels' own
--- grad_scale is not used: it is a float32, float64 runs would lose by it.
local fail = require 'nnscaler.fail'
local glob = require 'nnscaler.optim.glob'
local host = require 'nnscaler.tensor.host'
local nearest = require 'nnscaler.nearest'
local resolve = require 'nnscaler.resolve'
local slots = require 'nnscaler.optim.slots'
local sorted = require 'nnscaler.sorted'
local state = require 'nnscaler.optim.state'

local M = {}

---@class nnscaler.Optimizer
---@field lr number base learning rate, before the schedule
---@field kinds table[] kind of each group; the first is the default group
---@field options table[] options of each group
---@field on_host boolean|nil whether it keeps its state in memory of the host, and updates there
---@field slots table[] one per trainable parameter: { name, data, group, count, tensors,
---  declared: of the tensors, once asked }
local Optimizer = {}
Optimizer.__index = Optimizer
M.Optimizer = Optimizer

local what = {
  key = 'optimizer.type', prefix = 'nnscaler.optim.',
  builtin = { 'adafactor', 'adam', 'adamw', 'lion', 'mixed_precision_adamw', 'muon', 'sgd' },
  expects = 'an optimizer kind { defaults, update, slots }',
}

-- Options of a group: the kind's defaults, the job's arguments, the group's own.
local function merge(kind, key, ...)
  local options = { master = true }
  for name, value in sorted.sorted_pairs(kind.defaults) do options[name] = value end
  local known = sorted.sorted_keys(options)
  for i = 1, select('#', ...) do
    for name, value in sorted.sorted_pairs((select(i, ...))) do
      if options[name] == nil then
        fail('usage', key, ("unknown key '%s'; expected %s"):format(tostring(name),
          table.concat(known, ', ')), nearest(name, known) or key == 'optimizer.args'
          and ('one of another kind of optimizer is left out by optimizer.args.%s=null'):format(
          tostring(name)) or nil)
      end
      options[name] = value
    end
  end
  if type(options.master) ~= 'boolean' then
    fail('usage', key, ('master is %s; expected true or false'):format(tostring(options.master)))
  end
  if kind.check then kind.check(options, key) end
  return options
end

local function without(t, key)
  local rest = {}
  for name, value in sorted.sorted_pairs(t) do
    if name ~= key then rest[name] = value end
  end
  return rest
end

-- Groups are a list of tables.
local function check_groups(groups)
  local all = type(groups) == 'table'
  for _, group in ipairs(all and groups or {}) do all = all and type(group) == 'table' end
  if not all or #groups ~= #sorted.sorted_keys(groups) then
    fail('usage', 'optimizer.args', 'groups is not a list of tables',
      "groups = { { match = '*.bias', weight_decay = 0 } }")
  end
end

-- The kind of optimizer named or given.
local function kind_at(type_or_kind)
  local kind = resolve(what, type_or_kind)
  if type(kind) ~= 'table' or not kind.defaults or not kind.update then
    fail('usage', what.key, ("'%s' is not an optimizer; expected %s"):format(
      tostring(type_or_kind), what.expects))
  end
  return kind
end

-- Adds the kind and the options of each group.
local function add_groups(self, kind, args, groups)
  self.kinds[1], self.options[1] = kind, merge(kind, 'optimizer.args', args)
  self.lr = self.options[1].lr
  for i, group in ipairs(groups) do
    local key = ('optimizer.args.groups[%d]'):format(i)
    local own = without(without(group, 'match'), 'type')
    if group.type == nil then
      self.kinds[i + 1], self.options[i + 1] = kind, merge(kind, key, args, own)
    else -- arguments of the job are those of its own kind
      self.kinds[i + 1] = kind_at(group.type)
      self.options[i + 1] = merge(self.kinds[i + 1], key, own)
    end
  end
end

--- Makes the optimizer of a job.
---@param config { type: string|table, args?: table } args.groups: a list of { match = pattern or
---  list of patterns, type = of another kind, … } with options of its own; the first group that
---  fits a name has it
---@param parameters { name: string, data: nnscaler.Tensor|nil, requires_grad: boolean }[] of the
---  model; those that are updated elsewhere have no data
---@return nnscaler.Optimizer
function M.new(config, parameters)
  local kind = kind_at(config.type)
  local args, groups = without(config.args or {}, 'groups'), (config.args or {}).groups or {}
  local self = setmetatable({ kinds = {}, options = {}, slots = {}, by_name = {} }, Optimizer)
  check_groups(groups)
  add_groups(self, kind, args, groups)
  local group_of = glob.assign(groups, parameters)
  for _, parameter in ipairs(parameters) do
    if parameter.requires_grad and parameter.data then
      local slot = { name = parameter.name, data = parameter.data, count = 0, tensors = {},
        group = group_of[parameter.name] + 1, dtype = parameter.data.dtype }
      local by = self.kinds[slot.group]
      local why = by.refuses and by.refuses(parameter.data.shape)
      if why then
        fail('usage', 'optimizer.args', ("%s; '%s' has shape [%s]"):format(why, slot.name,
          table.concat(parameter.data.shape, ', ')), ("give it to another optimizer: groups = { { "
          .. "match = '%s', type = 'adamw' } }"):format(slot.name))
      end
      self.slots[#self.slots + 1] = slot
      self.by_name[slot.name] = slot
    end
  end
  return self
end

--- Names of the parameters that the optimizer of a job has to have whole on the rank that updates
--- them.
---@param config { type: string|table, args?: table } as for new
---@param parameters { name: string }[]
---@return string[]
function M.undivided(config, parameters)
  local args, groups = without(config.args or {}, 'groups'), (config.args or {}).groups or {}
  local self, names = { kinds = {}, options = {} }, {}
  check_groups(groups)
  add_groups(self, kind_at(config.type), args, groups)
  local group_of = glob.assign(groups, parameters)
  for _, parameter in ipairs(parameters) do
    local kind = self.kinds[group_of[parameter.name] + 1]
    if kind.whole or not (kind.slots or kind.elementwise) then
      names[#names + 1] = parameter.name
    end
  end
  return names
end

--- The kind that updates a parameter.
---@param slot table of self.slots
---@return table
function Optimizer:kind_of(slot) return self.kinds[slot.group] end

--- What it keeps of a parameter.
---@param slot table of self.slots
---@return nnscaler.Slot[]
function Optimizer:slots_of(slot)
  slot.declared = slot.declared
    or slots.of(self.kinds[slot.group], self.options[slot.group], slot.data)
  return slot.declared
end

--- What it keeps of the parameters once each was updated.
---@return { parameter: string, name: string, shape: integer[], dtype: string }[]
function Optimizer:declared()
  local list = {}
  for _, slot in ipairs(self.slots) do
    for _, declared in ipairs(self:slots_of(slot)) do
      local shape, dtype = slots.type_of(declared, slot.data)
      list[#list + 1] = { parameter = slot.name, name = declared.name, shape = shape,
        dtype = dtype }
    end
  end
  return list
end

--- Takes the gradients of this step.
---@param grad fun(name: string): nnscaler.Tensor|nil
function Optimizer:collect(grad)
  local active, parameters, gradients = {}, {}, {}
  for _, slot in ipairs(self.slots) do
    local g = grad(slot.name)
    if g ~= nil then
      local n = #active + 1
      active[n], parameters[n], gradients[n] = slot, slot.data, g
    end
  end
  require('nnscaler._C.train').align(parameters, gradients)
  self.active, self.gradients = active, gradients
end

--- Multiplies the collected gradients by a factor.
---@param factor number
---@return number norm 2-norm of all of them after that
function Optimizer:scale(factor)
  return require('nnscaler._C.train').scale_and_norm(self.gradients, factor)
end

--- Clips the collected gradients to a norm as torch.nn.utils.clip_grad_norm_ does.
---@param norm number what `scale` returned
---@param max number largest norm allowed; 0: no clipping
function Optimizer:clip(norm, max)
  if max <= 0 then return end
  local factor = max / (norm + 1e-6)
  if factor < 1 then require('nnscaler._C.train').scale(self.gradients, factor) end
end

--- Updates the parameters whose gradients were collected, and forgets the gradients.
---@param lr number as for update
function Optimizer:step(lr)
  local active, gradients = self.active, self.gradients
  self.active, self.gradients = nil, nil
  self:update(active, gradients, lr)
end

-- Has a kind update masters where there are any, by gradients of their dtype.
local function lay_masters(bucket)
  for i, slot in ipairs(bucket.slots) do
    local weight = slot.tensors.master or slot.data
    bucket.parameters[i] = weight
    if bucket.gradients[i].dtype ~= weight.dtype then
      bucket.gradients[i] = bucket.gradients[i]:to(weight.dtype)
    end
  end
end

--- Updates parameters.
---@param active table[] their slots
---@param gradients nnscaler.Tensor[] of each; they lie in memory as their parameters do
---@param lr number learning rate of the default group; groups with their own keep their ratio to it
function Optimizer:update(active, gradients, lr)
  local buckets, order = {}, {}
  for i, slot in ipairs(active) do
    local key = slot.group .. slot.dtype .. slot.count
    local bucket = buckets[key]
    if not bucket then
      bucket = { group = slot.group, dtype = slot.dtype, count = slot.count, parameters = {},
        gradients = {}, slots = {} }
      buckets[key], order[#order + 1] = bucket, bucket
    end
    local n = #bucket.slots + 1
    bucket.slots[n], bucket.parameters[n], bucket.gradients[n] = slot, slot.data, gradients[i]
  end
  require('nnscaler.tensor').no_grad(function()
    for _, bucket in ipairs(order) do
      local options = self.options[bucket.group]
      -- lr·(own/base) would not be lr exactly where own is base
      bucket.lr = options.lr == self.lr and lr or lr * (options.lr / self.lr)
      self:make_state(bucket)
      lay_masters(bucket)
      self.kinds[bucket.group].update(self, bucket, options)
      for i, slot in ipairs(bucket.slots) do
        slot.count = slot.count + 1
        if slot.tensors.master then slot.data:copy_(bucket.parameters[i]) end
      end
    end
  end)
end

--- Puts a tensor of its state where that rests: on the host where the optimizer works there.
---@param x nnscaler.Tensor
---@return nnscaler.Tensor
function Optimizer:home(x) return self.on_host and host.take(x) or x end

-- Makes the state tensors of parameters that are updated for the first time. A bucket has a list of
-- each slot, in the order of its parameters; nil where a parameter has none.
function Optimizer:make_state(bucket)
  for i, slot in ipairs(bucket.slots) do
    for _, declared in ipairs(self:slots_of(slot)) do
      slot.tensors[declared.name] = slot.tensors[declared.name]
        or self:home(slots.first(declared, slot.data))
      bucket[declared.name] = bucket[declared.name] or {}
      bucket[declared.name][i] = slot.tensors[declared.name]
    end
  end
end

--- Returns the state for a checkpoint: numbers of updates by parameter name, and the tensors.
---@return { counts: table<string, integer>, tensors: table[] } state as optim.state says
function Optimizer:state() return state.export(self) end

--- Takes a state back; all of it is checked before any of it is used.
---@param saved { counts: table<string, integer>, tensors: table[] }
function Optimizer:load_state(saved) state.import(self, saved) end

return M
