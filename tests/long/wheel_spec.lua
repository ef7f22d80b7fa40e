-- The Python wheel of the program (tools/wheel): in a virtual environment that has nothing else but
-- the torch wheel, the command trains for a user who can write nothing of this tree.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

describe('the wheel', function()
  local folder, remove = shell.folder()
  teardown(remove)
  local function run(command)
    local said, code = shell.run(command:gsub('FOLDER', folder))
    assert.equal(0, code, said)
    return said
  end

  it('has the same bytes each time', function()
    run "tools/wheel build 'FOLDER/one' && tools/wheel build 'FOLDER/two'"
    run "cmp 'FOLDER'/one/*.whl 'FOLDER'/two/*.whl"
  end)

  it('gives any user the command', function()
    run "/usr/bin/python3 -m venv 'FOLDER/venv'" -- that of the system, which everybody may run
    run("'FOLDER/venv/bin/pip' install -q --no-deps $(grep -E '^(torch|nvidia|highsbox)' "
      .. "tools/requirements.txt) 'FOLDER'/one/*.whl")
    local meta = run "'FOLDER/venv/bin/pip' show nnscaler"
    assert.matches('Requires: highsbox, torch', meta)
    base.make_folder(folder .. '/work')
    base.file_write(folder .. '/work/job.yaml', require('tests.cli.support.cases').yaml)
    run "chmod -R a+rX 'FOLDER' && chmod -R a+rwX 'FOLDER/work'"
    local as_user = shell.run('id -u'):match '%d+' == '0'
      and 'setpriv --reuid 65534 --regid 65534 --clear-groups ' or ''
    local said = run("cd 'FOLDER/work' && " .. as_user .. "env HOME='FOLDER/work' "
      .. '../venv/bin/nnscaler run job.yaml max_train_steps=2 -n 2')
    assert.matches('2 ranks joined by mpi', said)
    said = run "'FOLDER/venv/bin/nnscaler' doctor"
    assert.matches(folder .. '/venv/lib/python', said, 1, true)
    assert.matches('HiGHS +there', said)
  end)

  it('names a folder that is no build', function()
    local said, code = shell.run(("tools/wheel '%s' '%s'"):format(folder, folder))
    assert.equal(1, code)
    assert.matches('is not a build folder; run `make build`', said, 1, true)
  end)
end)
