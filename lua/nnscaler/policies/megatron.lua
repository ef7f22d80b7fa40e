--- megatron: the layout by which transformers are cut by hand (Shoeybi 2019, Korthikanti 2022),
--- found from the graph. Linear layers that read one value are cut by columns when what they give
--- can be followed, cut, to linear layers that are cut by rows: heads of attention, grouped ones
--- too, and the inner width of an MLP. The first of each pair copies its input, the second sums:
--- four all-reduces a layer. The rows of the token table and the classes of the loss are cut as
--- well. Where keys have fewer heads than there are devices, several devices hold each.
---
--- `pas_config`: sequence_parallel (false): what lies between the pairs is cut along the sequence,
--- so that each all-reduce becomes a reduce-scatter and an all-gather; vocab_parallel (true);
--- expert_parallel (true): experts go to devices whole, else their inner width is cut;
--- context_parallel (1): so many devices share a text, context_attention ('ring') says how;
--- pipeline_nstages (1), pipeline_nmicros, pipeline_scheduler.
local blocks = require 'nnscaler.policies.blocks'
local fail = require 'nnscaler.fail'
local keys = require 'nnscaler.policies.keys'
local log = require('nnscaler.log').logger 'nnscaler.policies'
local sorted = require 'nnscaler.sorted'
local text = require 'nnscaler.policies.text'

local Layout = {}
Layout.__index = Layout

local function same(a, b)
  if #a ~= #b then return false end
  for i, n in ipairs(a) do
    if n ~= b[i] then return false end
  end
  return true
end

local function is_cut(what) return type(what) == 'number' end

-- Whether a node is a linear layer with a weight of its own, or several layers of one input as one.
function Layout:is_linear(node)
  local weight = node.kind == 'linear' and self.graph:weight_of(node.inputs[2])
  return weight and #weight.shape >= 2
end

-- The weight of a loss that makes the scores of classes itself: [classes, width].
function Layout:weight_of_classes(node)
  return node.kind == 'class_loss' and node.inputs[2] and self.graph:weight_of(node.inputs[2])
end

-- Values and operators as messages show them.
local function shape_of(value) return ('[%s]'):format(table.concat(value.shape, ', ')) end
local function place_of(node)
  return ('%s of %s'):format(node.op, node.module ~= '' and node.module or 'the model')
end

-- How a node is cut when its operands in `cut` (value id → dim) are: where, and the split; nil and
-- why where it cannot be, or wants another operand cut that a layer made whole: then that operand
-- too, and how it is wanted.
function Layout:follow(node, cut)
  for i, id in ipairs(node.inputs) do
    if cut[id] then
      local where = { input = i - 1, dim = cut[id] }
      local split = self.graph:split_of(node, where, self.parts)
      if not split then
        return nil, nil, ('%s cannot cut %s: %s'):format(place_of(node),
          shape_of(self.values[id + 1]), self.graph:refusal(node, where, self.parts))
      end
      for k, other in ipairs(node.inputs) do
        local wanted, value = split.inputs[k], self.values[other + 1]
        local free = value.producer == nil or not value.requires_grad
          or self.graph:weight_of(other)
        local clash = cut[other] and wanted ~= cut[other]
        if clash or is_cut(wanted) and not cut[other] and not free then
          -- A stream to which results are added is whole: nothing that the user could change.
          if node.kind == 'sum' and same(value.shape, self.values[id + 1].shape) then return nil end
          return nil, nil, ('%s reads operand %d, %s, which is not cut into %d parts with the '
            .. 'others'):format(place_of(node), k - 1, shape_of(value), self.parts),
            not cut[other] and other or nil, wanted
        end
      end
      return where, split
    end
  end
end

-- Where a node repeats what it reads: the cut by which it makes a part of that along a dimension of
-- its result, or along any.
function Layout:repeats(node, dim)
  for _, place in ipairs(self.graph:choices(node)) do
    local split = self.graph:split_of(node, place, self.parts)
    local whole = split and is_cut(split.outputs[1]) and (not dim or split.outputs[1] == dim)
    for _, how in ipairs(split and split.inputs or {}) do whole = whole and how == 'replicate' end
    if whole then return place end
  end
end

-- The node that makes a value, if it is to be looked at.
function Layout:maker(id)
  local producer = self.values[id + 1].producer
  local node = producer and self.graph:nodes()[producer + 1]
  return node and not self.places[node.id] and node or nil
end

-- The linear layers that a value is made of, in program order: not those before them, nor those
-- whose results are repeated.
function Layout:sources(id)
  local wanted, found = { [id] = true }, {}
  local nodes = self.graph:nodes()
  for i = #nodes, 1, -1 do
    local node, makes = nodes[i], false
    for _, out in ipairs(node.outputs) do makes = makes or wanted[out] end
    if makes and self:is_linear(node) then
      table.insert(found, 1, node)
    elseif makes and not self:repeats(node) then
      for _, input in ipairs(node.inputs) do wanted[input] = true end
    end
  end
  return found
end

-- The linear layers with those that made a value; nil where there are no others that could be cut.
function Layout:joined(linears, id)
  local known, all = {}, {}
  for i, node in ipairs(linears) do known[node.id], all[i] = true, node end
  for _, node in ipairs(self:sources(id)) do
    if self.places[node.id] then return nil end
    if not known[node.id] then all[#all + 1] = node end
  end
  return #all > #linears and all or nil
end

-- Follows linear layers cut by columns. Returns the cuts of nodes by id; nil when some path does
-- not end in a layer cut by rows or a loss over classes, and why, where other sizes would help.
-- Where a path meets a value that other linear layers made, those are cut with them; where one that
-- only repeats what is whole, its maker makes no more than each part of it.
function Layout:columns(linears)
  local cut, places, ends, column = {}, {}, 0, { input = 1, dim = -2 }
  local function mark(node, split)
    for k, id in ipairs(node.outputs) do
      local how = split.outputs[k]
      if is_cut(how) then cut[id] = how end
    end
  end
  for _, node in ipairs(linears) do
    local split = self.graph:split_of(node, column, self.parts)
    if not split then
      return nil, ('its weight %s: %s'):format(shape_of(self.values[node.inputs[2] + 1]),
        self.graph:refusal(node, column, self.parts))
    end
    places[node.id] = column
    mark(node, split)
  end
  for _, node in ipairs(self.graph:nodes()) do
    local touched = false
    for _, id in ipairs(node.inputs) do touched = touched or cut[id] ~= nil end
    if touched and not places[node.id] then
      if self.places[node.id] or self.graph:stage_of(node) ~= self.graph:stage_of(linears[1]) then
        return nil, place_of(node) .. ' is cut in another way, or lies in another stage'
      end
      local where, split, why, missing, wanted = self:follow(node, cut)
      if missing then
        local maker = self:maker(missing)
        local place = maker and self:repeats(maker, wanted)
        if place then
          places[maker.id], cut[missing] = place, wanted
          where, split, why = self:follow(node, cut)
        else
          local all = self:joined(linears, missing)
          if all then return self:columns(all) end
        end
      end
      if not where then return nil, why end
      places[node.id] = where
      if self:is_linear(node) then
        if split.outputs[1] ~= 'value' then return nil end
        ends = ends + 1
      elseif is_cut(split.outputs[1]) then
        mark(node, split)
      elseif node.kind == 'class_loss' and split.outputs[1] == 'replicate' then
        if not self.vocab_parallel then return nil end
        ends = ends + 1
      else
        return nil
      end
    end
  end
  return ends > 0 and places or nil
end

-- Cuts linear layers by columns and those that they lead to by rows: all that read one value
-- together, else one by one.
function Layout:cut_columns_and_rows()
  local groups, order = {}, {}
  for _, node in ipairs(self.graph:nodes()) do
    if self:is_linear(node) then
      local key = node.inputs[1]
      if not groups[key] then groups[key], order[#order + 1] = {}, key end
      table.insert(groups[key], node)
    end
  end
  local function take(linears)
    for _, node in ipairs(linears) do
      if self.places[node.id] then return false end
    end
    local places, why = self:columns(linears)
    if not places then
      for _, node in ipairs(linears) do self.why[node.id] = self.why[node.id] or why end
      return false
    end
    for _, node in ipairs(self.graph:nodes()) do
      if places[node.id] then self.places[node.id] = places[node.id] end
    end
    self.stream = self.stream or self.values[linears[1].inputs[1] + 1].shape
    return true
  end
  for _, key in ipairs(order) do
    if not take(groups[key]) and #groups[key] > 1 then
      for _, node in ipairs(groups[key]) do take { node } end
    end
  end
end

-- Cuts the classes of losses that make their scores themselves.
function Layout:cut_classes()
  local where = { input = 1, dim = 0 }
  for _, node in ipairs(self.graph:nodes()) do
    if self:weight_of_classes(node) then
      if self.graph:split_of(node, where, self.parts) then
        self.places[node.id] = where
      else
        self.why[node.id] = ('its weight %s: %s'):format(shape_of(self.values[node.inputs[2] + 1]),
          self.graph:refusal(node, where, self.parts))
      end
    end
  end
end

-- Cuts the rows of the longest embedding table: that of the tokens. One that an output layer shares
-- is cut where that one is.
function Layout:cut_table()
  local most, longest = 0, {}
  for _, node in ipairs(self.graph:nodes()) do
    if node.kind == 'embedding' then
      local rows = self.values[node.inputs[1] + 1].shape[1]
      if rows > most then most, longest = rows, {} end
      if rows == most then longest[#longest + 1] = node end
    end
  end
  local where = { input = 0, dim = 0 }
  for _, node in ipairs(longest) do
    local fits = self.graph:split_of(node, where, self.parts) ~= nil
    for _, other in ipairs(self.graph:nodes()) do
      local tied = (self:is_linear(other) or self:weight_of_classes(other))
        and self.graph:weight_of(other.inputs[2]) == self.graph:weight_of(node.inputs[1])
      if tied and not self.places[other.id] then fits = false end
    end
    if fits then self.places[node.id] = where end
  end
end

-- Of how many linear layers something is known that keeps them whole.
function Layout:count_whole()
  local count = 0
  for id in sorted.sorted_pairs(self.why) do count = count + (self.places[id] and 0 or 1) end
  return count
end

-- Linear layers that stay whole, by reason, as text; those of repeated blocks together.
function Layout:whole()
  local lines, by_reason = {}, {}
  for _, node in ipairs(self.graph:nodes()) do
    local why = not self.places[node.id] and self.why[node.id]
    if why then
      local reason = why:gsub('%.%d+', '.*')
      local line = by_reason[reason]
      if not line then
        line = { reason = reason, names = {}, seen = {} }
        by_reason[reason], lines[#lines + 1] = line, line
      end
      local name = node.module:gsub('%.%d+', '.*')
      if not line.seen[name] then
        line.seen[name] = true
        table.insert(line.names, name)
      end
    end
  end
  for i, line in ipairs(lines) do
    lines[i] = ('%s: %s'):format(table.concat(line.names, ', '), line.reason)
  end
  return lines
end

-- Cuts experts: whole ones go to devices, with a part of the tokens each, or their inner width.
function Layout:cut_experts(whole)
  for _, node in ipairs(self.graph:nodes()) do
    if node.kind == 'experts' then
      local places = { { input = 3, dim = 1 } }
      if whole then table.insert(places, 1, { input = 3, dim = 0 }) end
      for _, place in ipairs(places) do
        self.why[node.id] = self.graph:refusal(node, place, self.parts)
        if not self.why[node.id] then
          self.places[node.id] = place
          break
        end
      end
    end
  end
end

-- Whether a value has the sizes of those between the pairs, but perhaps for the last one.
function Layout:streams(id)
  local shape = self.values[id + 1].shape
  for d = 1, #self.stream - 1 do
    if shape[d] ~= self.stream[d] then return false end
  end
  return #shape == #self.stream
end

-- Cuts what makes values shaped as those between the pairs along the sequence.
function Layout:cut_sequence()
  local dim = #self.stream - 2
  if self.stream[dim + 1] % self.total ~= 0 then
    fail('plan', 'policies.megatron', ('sequence_parallel: dimension %d of [%s] is not divisible '
      .. 'by %d'):format(dim, table.concat(self.stream, ', '), self.total),
      'choose another sequence length, or sequence_parallel=false')
  end
  for _, node in ipairs(self.graph:nodes()) do
    local streams = not self.places[node.id] and #node.outputs > 0
    for _, id in ipairs(node.outputs) do streams = streams and self:streams(id) end
    if streams then
      for _, place in ipairs(self.graph:choices(node)) do
        local split = self.graph:split_of(node, place, self.parts)
        if split and split.outputs[1] == dim then
          self.places[node.id] = place
          break
        end
      end
    end
  end
end

local rules = { sequence_parallel = { 'boolean' }, vocab_parallel = { 'boolean' },
  expert_parallel = { 'boolean' }, context_parallel = { 'integer', least = 1 },
  context_attention = { 'text' } }
for name, rule in sorted.sorted_pairs(blocks.keys) do rules[name] = rule end

-- Devices that share a text, and how its attention is shared.
local function context(config, devices)
  local parts, how = config.context_parallel or 1, config.context_attention or 'ring'
  if devices % parts ~= 0 then
    fail('plan', 'policies.megatron', ('context_parallel=%d on %d devices of a stage; expected a '
      .. 'divisor'):format(parts, devices))
  end
  if how ~= 'ring' and how ~= 'all_to_all' then
    fail('usage', 'policies.megatron', ("context_attention is '%s'; expected ring or all_to_all")
      :format(how))
  end
  return parts, how
end

-- Finds what is cut into so many parts, inside `before` parts that are there already.
local function cut_layers(graph, config, parts, before)
  local layout = setmetatable({ graph = graph, parts = parts, total = parts * before,
    values = graph.values, places = {}, why = {}, -- for linear layers by id, what keeps them whole
    vocab_parallel = config.vocab_parallel ~= false }, Layout)
  layout:cut_columns_and_rows()
  if layout.vocab_parallel then layout:cut_classes() end
  layout:cut_experts(config.expert_parallel ~= false)
  return layout
end

-- What the first devices that share out the layers cut: all that share a part of a text, unless
-- fewer could cut more layers. Few heads of keys are such a case: each goes to several devices,
-- which then share out its queries.
local function first_layout(graph, config, parts, before)
  local best, fewest = nil, math.huge
  for n = parts, 2, -1 do
    local layout = parts % n == 0 and cut_layers(graph, config, n, before)
    local count = layout and layout:count_whole()
    if count and count < fewest then best, fewest = layout, count end
    if fewest == 0 then break end
  end
  return best
end

-- Adds a cut to each node that has a place; others that are cut already are repeated.
local function put(graph, places, parts, before)
  for _, node in ipairs(graph:nodes()) do
    local planned = graph:planned(node)
    if places[node.id] then
      if not planned and before > 1 then graph:replicate(node, before) end
      graph:partition(node, places[node.id], parts)
    elseif planned and parts > 1 then
      graph:replicate(node, parts)
    end
  end
end

-- Shares out the layers over devices that share a part of a text.
local function share_out(graph, config, parts, before)
  local layout = first_layout(graph, config, parts, before)
  if not layout.stream then
    fail('plan', 'policies.megatron', ('no pair of linear layers can be cut by columns and rows '
      .. 'into %d parts\n  %s'):format(parts, table.concat(layout:whole(), '\n  ')),
      "numbers of heads and inner widths must be divisible; pas_policy='data' or 'tp' cut other "
      .. 'models')
  end
  local text_of = 'every rank holds the whole of linear layers that cannot be cut into %d parts: %s'
  while layout do
    local n = layout.parts
    for _, line in ipairs(layout:whole()) do log.warning(text_of, n, line) end
    if layout.vocab_parallel then layout:cut_table() end
    if config.sequence_parallel and layout.stream then layout:cut_sequence() end
    put(graph, layout.places, n, before)
    parts, before = parts / n, before * n
    layout = parts > 1 and cut_layers(graph, config, parts, before)
    text_of = '%d ranks hold alike each part of linear layers that cannot be cut further: %s'
  end
end

return keys.policy(rules, function(graph, cfg)
  local config = cfg.pas_config or {}
  local devices = blocks.stages(graph, cfg, 'policies.megatron', 1)
  local texts, how = context(config, devices)
  if texts > 1 then put(graph, text.places(graph, texts, how), texts, 1) end
  if devices > texts then share_out(graph, config, devices / texts, texts) end
  graph:replicate_rest()
end)
