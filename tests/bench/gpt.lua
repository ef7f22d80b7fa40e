--- recipes/nanogpt.lua with a watch: `cpu=FILE` gets the CPU seconds of each step, one per line.
local nnscaler = require 'nnscaler'

local here = debug.getinfo(1, 'S').source:match '^@(.*)/'
local p = nnscaler.params { cpu = { '', 'file for the CPU seconds of each step' } }
local job = dofile(here .. '/../../recipes/nanogpt.lua')
job.hook = dofile(here .. '/watch.lua')(p.cpu)
return job
