--- Model FLOPs utilisation: what a step has to compute, as a share of what its devices can.
local M = {}

--- 3 · F · B / (N · P · s): F floating point operations of a forward of one micro-batch, as the
--- records of operators count them; backward twice as many; B micro-batches of the step, N ranks,
--- P operations a second of a device (peak_tflops), s seconds. What is computed again in backward
--- does not count.
---@param t nnscaler.Trainer
---@param seconds number of the step that t.step done ones precede
---@return number|nil nil for an eager run, which has no graph
function M.of(t, seconds)
  local flops = t.engine.flops
  if not flops then return nil end
  local _, count = t.span:micro_batches(t)
  return 3 * flops * count / (t.world_size * t.args.peak_tflops * 1e12 * seconds)
end

return M
