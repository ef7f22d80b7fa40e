---@meta nnscaler._C.base
--- The log, whole files, JSON, hashes and the clock (src/bind/base.cpp). Needs no LibTorch.

---@class nnscaler._C.base
---@field version string of nnscaler, as '0.1.0'
---@field compiler string that built it, with its version
---@field build string hash of the library of the planner core: equal in processes of one build
---@field executable string path of the running binary
local base = {}

--- Writes one line to the log on stderr, where its level is written.
---@param level 'debug'|'info'|'warning'|'error'
---@param logger string who speaks, as 'nnscaler.trainer'
---@param text string
function base.log(level, logger, text) end

--- Sets the least level that is written; a usage error lists the names for one that is unknown.
---@param name string 'debug', 'info', 'warning', 'error' or 'off'
function base.log_level(name) end

--- Writes a line to stderr as it is, without time and level.
---@param text string without a newline
function base.raw_line(text) end

--- Sets the line below the log on stderr's terminal (a progress bar); '' removes it.
---@param text string
---@param columns integer that the text takes on the terminal
function base.set_status(text, columns) end

--- Columns of stderr's terminal.
---@return integer|nil columns nil where stderr is not a terminal
function base.terminal_columns() end

--- Reads a whole file; a state error where that fails.
---@param path string
---@param area? string of the error, 'file.read' by default
---@return string bytes
function base.file_read(path, area) end

--- Writes a whole file at once: readers see the old bytes or all new ones.
---@param path string
---@param bytes string
---@param area? string of the error, 'file.write' by default
function base.file_write(path, bytes, area) end

--- Tells what lies at a path; links are followed, and 'device' is also a pipe.
---@param path string
---@return 'file'|'folder'|'device'|nil kind
function base.file_exists(path) end

--- Makes a folder with its parents; a state error where that fails.
---@param path string
function base.make_folder(path) end

--- Names of what a folder holds, sorted; an empty list where it cannot be read.
---@param path string
---@return string[] names
function base.list_folder(path) end

--- The monotonic clock.
---@return number seconds since an arbitrary moment
function base.clock() end

--- Processor time of the calling thread, which others on the machine do not lengthen.
---@return number seconds since the thread began
function base.thread_clock() end

--- A 64-bit hash of bytes, equal on every machine.
---@param text string
---@return string digits 16 hexadecimal digits
function base.hash(text) end

--- Whether bytes are UTF-8.
---@param text string
---@return boolean
function base.is_utf8(text) end

--- JSON of a value: keys sorted, numbers exact, a table without list entries an object, bytes that
--- are not UTF-8 as { "$bytes": … }. A state error for a key that is not a string, functions, and
--- more than 100 levels.
---@param value any
---@param indent? integer spaces a level; all in one line by default
---@return string json
function base.json_encode(value, indent) end

--- The value of a JSON text; null is nil. A state error where it is malformed.
---@param text string
---@return any value
function base.json_decode(text) end

return base
