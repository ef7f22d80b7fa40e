-- What README promises, on a Debian that has nothing yet (tests/long/fresh_debian): a chroot in the
-- folder that NNSCALER_FRESH names, since it takes 20 GB and hours.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

describe('a fresh Debian', function()
  it('runs, tests, measures and installs from a lone clone', function()
    local folder = os.getenv 'NNSCALER_FRESH'
    if not folder then return pending 'set NNSCALER_FRESH to a folder with 20 GB' end
    if shell.run('id -u'):match '%d+' ~= '0' then return pending 'needs root' end
    if select(2, shell.run 'command -v debootstrap') ~= 0 then return pending 'no debootstrap' end
    local said, code = shell.run(("tests/long/fresh_debian '%s'"):format(folder))
    print(said)
    assert.equal(0, code, said)
    assert.equal(7, select(2, said:gsub('ok [^\n]+', '')))
  end)
end)

describe('what root installs', function()
  it('runs for another user, on two ranks', function()
    if shell.run('id -u'):match '%d+' ~= '0' then return pending 'needs root' end
    local folder, remove = shell.folder()
    finally(remove)
    local said, code = shell.run(("chmod a+rx '%s' && make install DESTDIR='%s' PREFIX=/usr/local")
      :format(folder, folder))
    assert.equal(0, code, said)
    base.make_folder(folder .. '/work')
    base.file_write(folder .. '/work/job.yaml', require('tests.cli.support.cases').yaml)
    said, code = shell.run(("chmod -R a+rwX '%s/work' && cd '%s/work' && setpriv --reuid 65534 "
      .. "--regid 65534 --clear-groups env HOME='%s/work' ../usr/local/bin/nnscaler run job.yaml "
      .. 'max_train_steps=2 -n 2'):format(folder, folder, folder))
    assert.equal(0, code, said)
    assert.matches('2 ranks joined by mpi', said)
  end)
end)
