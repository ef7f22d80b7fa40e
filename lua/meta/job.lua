---@meta nnscaler._C.job
--- The schema of jobs, and the way from a recipe's table or a YAML text to a complete job
--- (src/bind/job.cpp).

---@class nnscaler._C.job
local job = {}

---@class nnscaler.JobText
---@field file string path of the recipe or YAML file, for messages
---@field text? string its text: of YAML what is parsed, of Lua where lines of keys are looked up
---@field table? table what the recipe returned
---@field yaml? boolean whether `text` is YAML; else `table` is taken
---@field overrides? string[] 'KEY=VALUE' of the command line, applied in order
---@field parameters? string[] names of the recipe's parameters, for suggestions

---@class nnscaler.JobKey
---@field path string dotted
---@field type string as documentation says it: 'integer ≥ 1'
---@field default string as YAML; '' for none, '(required)'
---@field unit string '' for none
---@field help string
---@field programs boolean whether generated programs depend on it

---@class nnscaler.Override
---@field path string dotted
---@field value any
---@field remove boolean whether the key is taken away (`~KEY`)
---@field spelling? string the value as it was written, where it is a text

--- Completes a job: overrides, defaults, types and ranges. A usage error names key, place and what
--- is expected.
---@param spec nnscaler.JobText
---@return table job tables that are objects stay the very tables of the recipe
---@return string yaml the complete job as a YAML text
function job.resolve(spec) end

--- Reads one 'KEY=VALUE' of the command line; a usage error where it is not one.
---@param text string
---@return nnscaler.Override override
function job.parse_override(text) end

--- The candidate that a misspelt name is nearest to.
---@param name string
---@param candidates string[]
---@return string|nil nearest nil where none is near
function job.nearest(name, candidates) end

--- All keys of the schema, in the order of the documentation.
---@return nnscaler.JobKey[] keys
function job.keys() end

--- docs/configuration.md, written from the schema.
---@return string markdown
function job.document() end

return job
