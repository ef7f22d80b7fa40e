--- Parametrisations of weights: what a layer uses is computed from parameters at each call.
--- `nn.utils.parametrizations.weight_norm(layer)` and `spectral_norm(layer)` return the layer; the
--- parameters have PyTorch's names, `parametrizations.weight.original0` and so on.
local Module = require 'nnscaler.nn.module'
local aten = require('nnscaler.ops').aten
local check = require 'nnscaler.nn.check'
local fail = require 'nnscaler.fail'
local init = require 'nnscaler.nn.initializers'
local kinds = require 'nnscaler.nn.kinds'

local M = { parametrizations = {} }

-- The parameter of that name; an error where it is none, or has a parametrisation already.
local function parameter_of(area, layer, name)
  if kinds.of(layer) ~= 'module' then
    fail('usage', area, ('a %s; expected a module'):format(type(layer)))
  end
  local parameter = rawget(layer, name)
  if kinds.of(parameter) ~= 'parameter' then
    local parametrized = rawget(layer, 'parametrizations')
    fail('usage', area, ("%s '%s' of a %s"):format(parametrized and rawget(parametrized, name)
      and 'a second parametrisation of' or 'there is no parameter', tostring(name),
      layer.class_name))
  end
  return parameter
end

-- Removes the parameter and makes the layer use what the holder returns instead.
local function replace(layer, name, holder)
  for i, key in ipairs(layer._names) do
    if key == name then
      table.remove(layer._names, i)
      break
    end
  end
  rawset(layer, name, nil)
  if not rawget(layer, 'parametrizations') then
    layer.parametrizations = Module.class 'Parametrizations'()
    local forward = layer.forward
    local function forget(self, ...)
      for _, key in ipairs(self.parametrizations._names) do rawset(self, key, nil) end
      return ...
    end
    rawset(layer, 'forward', function(self, ...)
      for _, key in ipairs(self.parametrizations._names) do
        rawset(self, key, self.parametrizations[key]())
      end
      return forget(self, forward(self, ...))
    end)
  end
  layer.parametrizations[name] = holder
  return layer
end

-- A dimension of the parameter, from 0.
local function dim_of(area, value, parameter)
  check.integer(area, 'dim', value, -math.huge)
  local rank = #parameter.shape
  if value < -rank or value >= rank then
    fail('usage', area, ('dim = %d; the parameter has %d dimensions'):format(value, rank))
  end
  return value % rank
end

-- --- weight norm ---------------------------------------------------------------------------------

local function others(rank, dim)
  local list = {}
  for d = 0, rank - 1 do
    if d ~= dim then list[#list + 1] = d end
  end
  return list
end

local function norm_over(x, dims)
  if #dims == 0 then return aten.abs(x) end
  return aten.sqrt(aten.sum(aten.square(x), dims, true))
end

-- Root of the mean of squares of what an initialiser draws.
local function size_of(how)
  local a, b = how.a, how.b
  if how.kind == 'constant' then return math.abs(a) end
  if how.kind == 'uniform' then return math.sqrt((a * a + a * b + b * b) / 3) end
  return how.kind == 'normal' and math.sqrt(a * a + b * b) or 1
end

local WeightNorm = Module.class 'WeightNorm'
function WeightNorm:forward()
  local v = self.original1
  return aten.mul(v, aten.div(self.original0, norm_over(v, self.dims)))
end

--- Weight normalisation (Salimans 2016): g · v / ‖v‖ in place of the weight, with a norm for each
--- index of a dimension. `original0` is g, `original1` is v. v begins as the weight would have, g
--- with the norm that v has on average; of a layer that has values, with that of v.
---@param layer nnscaler.nn.Module
---@param name? string of its parameter, 'weight' by default
---@param dim? integer 0 by default
---@return nnscaler.nn.Module layer
function M.parametrizations.weight_norm(layer, name, dim)
  local area = 'nn.utils.weight_norm'
  name = name or 'weight'
  local v = parameter_of(area, layer, name)
  dim = dim_of(area, dim or 0, v)
  local holder, shape, count = WeightNorm(), {}, 1
  for d, size in ipairs(v.shape) do
    shape[d] = d == dim + 1 and size or 1
    if d ~= dim + 1 then count = count * size end
  end
  holder.dims = others(#shape, dim)
  if v.materialized then
    holder.original0 = kinds.parameter(norm_over(v.data:detach(), holder.dims))
  else
    holder.original0 = kinds.parameter { shape = shape, dtype = v.dtype,
      init = init.constant(size_of(v.init) * math.sqrt(count)) }
  end
  holder.original1 = v
  return replace(layer, name, holder)
end

-- --- spectral norm -------------------------------------------------------------------------------

local function unit(x, eps) return aten.div(x, aten.clamp_min(aten.norm(x), eps)) end

-- The one parametrisation of a list, which holds the vectors: its name is '0'.
local Spectral = Module.class 'Spectral'
local SpectralNorm = Module.class 'SpectralNorm'

function SpectralNorm:forward()
  local weight, vectors = self.original, self[1]
  local matrix = weight
  if vectors.dim ~= 0 then matrix = matrix:transpose(0, vectors.dim) end
  matrix = matrix:flatten(1)
  local u, v = vectors._u, vectors._v
  if self.training then
    local fixed = matrix:detach()
    for _ = 1, vectors.steps do
      u = unit(fixed:mv(v), vectors.eps)
      v = unit(fixed:t():mv(u), vectors.eps)
    end
    vectors._u:copy_(u)
    vectors._v:copy_(v)
  end
  return weight / u:dot(matrix:mv(v))
end

---@class nnscaler.SpectralOptions
---@field n_power_iterations? integer steps of the power method a call in training, 1
---@field eps? number least norm of its vectors, 1e-12
---@field dim? integer rows of the matrix that the weight is taken for, 0; of
---   transposed convolutions 1

--- Spectral normalisation (Miyato 2018): the weight divided by its greatest singular value, which
--- the power method follows with vectors that are buffers, `_u` and `_v`. They begin as random
--- vectors; a model has to be trained a few steps, or loaded, before it is evaluated.
---@param layer nnscaler.nn.Module
---@param name? string of its parameter, 'weight' by default
---@param options? nnscaler.SpectralOptions
---@return nnscaler.nn.Module layer
function M.parametrizations.spectral_norm(layer, name, options)
  local area = 'nn.utils.spectral_norm'
  name = name or 'weight'
  local o = check.options(area, options, { n_power_iterations = 1, eps = 1e-12,
    dim = tostring(layer):match '^ConvTranspose' and 1 or 0 })
  local weight = parameter_of(area, layer, name)
  local vectors, columns = Spectral(), 1
  vectors.dim = dim_of(area, o.dim, weight)
  if #weight.shape < 2 then
    fail('usage', area, ("parameter '%s' has %d dimension; expected at least 2"):format(name,
      #weight.shape))
  end
  vectors.steps = check.integer(area, 'n_power_iterations', o.n_power_iterations)
  vectors.eps = check.number(area, 'eps', o.eps, nil, 0)
  for d, size in ipairs(weight.shape) do
    if d ~= vectors.dim + 1 then columns = columns * size end
  end
  local rows = weight.shape[vectors.dim + 1]
  vectors:register_buffer('_u', { shape = { rows }, dtype = weight.dtype,
    init = init.normal(0, 1 / math.sqrt(rows)) })
  vectors:register_buffer('_v', { shape = { columns }, dtype = weight.dtype,
    init = init.normal(0, 1 / math.sqrt(columns)) })
  local holder = SpectralNorm()
  holder.original, holder[1] = weight, vectors
  return replace(layer, name, holder)
end

return M
