-- The recipes, jobs and scripts of docs/guide.md, docs/stories.md, docs/training.md and README.md
-- run.
local base = require 'nnscaler._C.base'
local shell = require 'tests.cli.support.shell'

local folder, remove = shell.folder()
teardown(remove)

local changes = {
  ['training.lua'] = { 'max_epochs=1', 'Reached max epochs' },
  ['model.lua'] = { 'max_epochs=1', 'Reached max epochs' },
}

for _, page in ipairs { 'docs/guide.md', 'docs/stories.md', 'docs/training.md', 'README.md' } do
  describe(page, function()
    local count, commands = 0, 0
    for name, text in base.file_read(page):gmatch '```%l+ file=([%w._]+)\n(.-)```' do
      count = count + 1
      it('has a file that runs: ' .. name, function()
        base.file_write(folder .. '/' .. name, text)
        local said, code
        if name == 'script.lua' then
          said, code = shell.nnscaler(name .. ' 2>/dev/null', ('cd %s &&'):format(folder))
          assert.equal('2\t3\n3\n', said)
        else
          local change = changes[name] or { 'max_train_steps=3', 'Reached max train steps%(3%)' }
          said, code = shell.nnscaler(('run %s threads=1 %s'):format(name, change[1]),
            ('cd %s &&'):format(folder))
          assert.matches(change[2], said)
        end
        assert.equal(0, code, said)
      end)
    end
    for command in base.file_read(page):gmatch '\n    nnscaler (verify [^\n]+)' do
      commands = commands + 1
      it('has a command that runs: ' .. command, function()
        local said, code = shell.nnscaler(command, ('cd %s &&'):format(folder))
        assert.equal(0, code, said)
      end)
    end
    for line in base.file_read(page):gmatch '\n    nnscaler (run first.lua %-n [^\n]+)' do
      local command = line:match '^(.-)  ' or line
      it('has a command on several ranks that runs: ' .. command, function()
        local said, code = shell.nnscaler(command .. ' max_train_steps=2 threads=1',
          ('cd %s &&'):format(folder))
        assert.equal(0, code, said)
        assert.matches('Reached max train steps%(2%)', said)
      end)
    end
    it('has such files', function() assert.is_true(count > 0) end)
    if page == 'docs/guide.md' then
      it('has such commands', function() assert.is_true(commands > 0) end)
    end
  end)
end
