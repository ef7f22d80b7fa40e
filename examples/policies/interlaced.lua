--- Interlaced embedding: the rows of the token table lie on the devices of all pipeline stages,
--- which look them up together. Where the vocabulary is large no stage carries the whole table.
--- The table is a stage of its own that every device runs beside its stage of blocks; its parts
--- stand in the order of 1F1B where the first stage needs them. An output layer that is tied to the
--- table is such a stage, too: every device makes the scores of its rows, behind the last block.
---
---   nnscaler run recipes/llama3.lua preset=tiny pas_policy=examples/policies/interlaced.lua -n 2

-- The first nodes of the blocks of a GPT or a LLaMA.
local function blocks_of(graph)
  local first = {}
  for _, list in ipairs { 'transformer.h.', 'model.layers.' } do
    for block in graph:modules(list .. '?') do first[#first + 1] = block:nodes()[1] end
  end
  return first
end

-- The parts of pipeline rank r of p under 1F1B: forward ahead by as many as stages follow.
local function one_f_one_b(r, p, micros)
  local parts, ahead = {}, math.min(p - 1 - r, micros)
  for k = 0, ahead - 1 do parts[#parts + 1] = { kind = 'F', micro = k } end
  for k = 0, micros - 1 do
    if ahead + k < micros then parts[#parts + 1] = { kind = 'F', micro = ahead + k } end
    parts[#parts + 1] = { kind = 'B', micro = k }
  end
  return parts
end

-- Gives each part its start and stop, with F = 1 and B = 2.
local function set_times(ranks, micros)
  local p, ended, free, at, left = #ranks, {}, {}, {}, 2 * #ranks * micros
  for r = 1, p do free[r], at[r] = 0, 1 end
  while left > 0 do
    for r = 1, p do
      local part = ranks[r][at[r]]
      local source = part and r + (part.kind == 'F' and -1 or 1)
      local before = part and (source < 1 or source > p) and 0
        or part and ended[('%s%d %d'):format(part.kind, source, part.micro)]
      if before then
        part.start = math.max(free[r], before)
        part.stop = part.start + (part.kind == 'F' and 1 or 2)
        ended[('%s%d %d'):format(part.kind, r, part.micro)], free[r] = part.stop, part.stop
        at[r], left = at[r] + 1, left - 1
      end
    end
  end
end

-- One order a rank: its own parts, and at one time everywhere those of the table, before the
-- forward and after the backward of the first stage, and those of a tied head, before the backward
-- of the last one.
local function orders(p, micros, tied)
  local ranks, shared = {}, {}
  for r = 0, p - 1 do ranks[r + 1] = one_f_one_b(r, p, micros) end
  set_times(ranks, micros)
  for _, part in ipairs(ranks[1]) do
    shared[#shared + 1] = { text = ('%s0:%d'):format(part.kind, part.micro),
      time = part.kind == 'F' and part.start or part.stop }
  end
  for _, part in ipairs(tied and ranks[p] or {}) do
    if part.kind == 'B' then
      local text = ('F%d:%d B%d:%d'):format(p + 1, part.micro, p + 1, part.micro)
      shared[#shared + 1] = { text = text, time = part.start }
    end
  end
  table.sort(shared, function(a, b)
    return a.time < b.time or a.time == b.time and a.text < b.text
  end)
  local out = {}
  for r, parts in ipairs(ranks) do
    local words, next_shared = {}, 1
    for _, part in ipairs(parts) do
      while shared[next_shared] and shared[next_shared].time <= part.start do
        words[#words + 1], next_shared = shared[next_shared].text, next_shared + 1
      end
      words[#words + 1] = ('%s%d:%d'):format(part.kind, r, part.micro)
    end
    for i = next_shared, #shared do words[#words + 1] = shared[i].text end
    out[r] = words
  end
  return out
end

-- The layer that makes scores out of the rows of the table, if there is one.
local function tied_head(graph, table_node)
  local rows = graph:weight_of(table_node.inputs[1])
  for _, node in ipairs(graph:nodes()) do
    if node.inputs[2] and graph:weight_of(node.inputs[2]) == rows then return node end
  end
end

-- Cuts the scores from the head to the loss, each device with those of its rows.
local function cut_scores(graph, head, p)
  graph:partition(head, { input = 1, dim = 0, uneven = true }, p)
  local node = head
  while node.kind ~= 'class_loss' do
    node = graph:consumers(node)[1]
    if not node then return end -- scores are what the model returns
    local classes = node.kind == 'class_loss' and 1 or #graph.values[node.inputs[1] + 1].shape - 1
    graph:partition(node, { input = 0, dim = classes, uneven = true }, p)
  end
end

return function(graph, cfg)
  local p, blocks = cfg.plan_ngpus, blocks_of(graph)
  local table_node = graph:select({ op = 'embedding' })[1]
  assert(table_node and #blocks >= p, 'expected an embedding, and a block for each device')

  local everywhere = {}
  for d = 0, p - 1 do everywhere[d + 1] = d end
  local first, devices = { graph:nodes()[table_node.id + 2] }, { everywhere, { 0 } }
  for s = 1, p - 1 do
    first[s + 1], devices[s + 2] = blocks[math.floor(s * #blocks / p) + 1], { s }
  end
  local head = tied_head(graph, table_node)
  if head then first[p + 1], devices[p + 2] = head, everywhere end
  graph:stage(first, devices)
  local micros = cfg.micro_batches or p
  graph:schedule { name = 'custom', micro_batches = micros,
    orders = orders(p, micros, head ~= nil) }
  if head then cut_scores(graph, head, p) end
  graph:partition(table_node, { input = 0, dim = 0, uneven = true }, p)
  graph:replicate_rest()
end
