---@meta nnscaler._C.process
--- What a running job asks of its process (src/bind/process.cpp).

---@class nnscaler._C.process
local process = {}

--- Lets SIGINT and SIGTERM be remembered for the next step boundary; a second one ends the process
--- with 128 + its number.
function process.watch_signals() end

--- Puts back the handlers that were there before `watch_signals`.
function process.unwatch_signals() end

--- Ends the process with 143 so long after a SIGTERM that `watch_signals` remembers, unless
--- `unwatch_signals` comes first. Called again, the text alone may differ.
---@param seconds integer at least 1
---@param text string written then to standard error, cut to 1023 bytes; '' leaves what is
function process.limit_end(seconds, text) end

--- The signal seen since `watch_signals`.
---@return integer|nil number nil where none came
function process.pending_signal() end

--- Resident memory of this process.
---@return integer bytes
function process.rss_bytes() end

--- Memory that processes of this host can take yet, or of this container where it has a limit.
---@return integer bytes
function process.free_bytes() end

--- Processors that this process may use.
---@return integer count at least 1
function process.processors() end

--- Numbers of those processors.
---@return string list as '0,1'
function process.processor_list() end

--- This host.
---@return string name
---@return string id a text that differs between hosts, also where names are equal
function process.host() end

--- How many Lua values C++ holds in this process, for tests of leaks.
---@return integer count
function process.references() end

return process
