--- `make lint` holds the order of folders (tools/order.py): on a small tree, what goes against the
--- tables of docs/design.md is named with its place, and nothing else is.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local page = [[
# Design

## Folders

| folder | what it is |
|---|---|
| `base` | errors |
| `graph`, `plan` | what is computed, and where |

## The Lua library

| part | what it is |
|---|---|
| `log` | the log |
| `nn` | modules |
| `nnscaler` | what `require 'nnscaler'` gives |
]]

local tree = {
  ['docs/design.md'] = page,
  ['src/base/error.h'] = '#pragma once\n#include <string>\n',
  ['src/graph/graph.h'] = '#include "base/error.h"\n#include "plan/plan.h"\n',
  ['src/plan/plan.h'] = '#include "graph/graph.h"\n',
  ['lua/nnscaler/log.lua'] = "local base = require 'nnscaler._C.base'\n",
  ['lua/nnscaler/nn/linear.lua'] = "local log = require 'nnscaler.log'\n",
  ['lua/nnscaler/init.lua'] = "return { nn = require 'nnscaler.nn.linear' }\n",
}

describe('tools/order.py', function()
  -- What it says of the tree with other texts of some files, and its exit code.
  local function check(changes)
    local folder, remove = shell.folder()
    finally(remove)
    local files = {}
    for name, text in pairs(tree) do files[name] = text end
    for name, text in pairs(changes) do files[name] = text end
    for name, text in pairs(files) do
      base.make_folder(folder .. '/' .. name:match '^(.*)/')
      base.file_write(folder .. '/' .. name, text)
    end
    return shell.run(("python3 tools/order.py '%s'"):format(folder))
  end

  it('takes a tree that is in order', function()
    local said, code = check {}
    assert.equal('', said)
    assert.equal(0, code)
  end)

  it('refuses an include of a folder below', function()
    local said, code = check { ['src/base/error.h'] = '#pragma once\n  #include "graph/graph.h"\n' }
    assert.equal('src/base/error.h:2: `base` uses `graph`, which stands below it: '
      .. '#include "graph/graph.h"\n', said)
    assert.equal(1, code)
  end)

  it('refuses a require of a part below, in both spellings', function()
    local said, code = check {
      ['lua/nnscaler/log.lua'] = "-- require 'nnscaler.nn'\n"
        .. "local nn = require('nnscaler.nn.linear')\n",
      ['lua/nnscaler/nn/linear.lua'] = 'local all = require "nnscaler"\n',
    }
    assert.equal("lua/nnscaler/log.lua:2: `log` uses `nn`, which stands below it: "
      .. "local nn = require('nnscaler.nn.linear')\n"
      .. 'lua/nnscaler/nn/linear.lua:1: `nn` uses `nnscaler`, which stands below it: '
      .. 'local all = require "nnscaler"\n', said)
    assert.equal(1, code)
  end)

  it('refuses folders without a row, rows without a folder, and names in two rows', function()
    local said, code = check {
      ['src/extra/extra.h'] = '#pragma once\n',
      ['docs/design.md'] = (page:gsub('| `log` | the log |', '%0\n| `gone`, `log` | twice |')),
    }
    assert.equal('docs/design.md: "Folders" has no row for `extra`\n'
      .. 'docs/design.md: `log` stands in two rows of "The Lua library"\n'
      .. 'docs/design.md: "The Lua library" has a row for `gone`, which is not there\n', said)
    assert.equal(1, code)
  end)
end)
