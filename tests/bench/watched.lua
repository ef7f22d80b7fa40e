--- A recipe with a watch (watch.lua), which writes to `cpu=FILE`.
local nnscaler = require 'nnscaler'

local here = debug.getinfo(1, 'S').source:match '^@(.*)/'
local p = nnscaler.params {
  cpu = { '', 'file for CPU seconds and bytes of each step' },
  recipe = { 'nanogpt', 'name of a file in recipes' },
}
local job = dofile(('%s/../../recipes/%s.lua'):format(here, p.recipe))
job.hook = dofile(here .. '/watch.lua')(p.cpu)
return job
