std = 'luajit'
max_line_length = 100
self = false -- methods need not use it
globals = {}
read_globals = {}
files['lua/meta'] = { unused_args = false, ignore = { '241' } } -- functions without bodies
files['tests/lua/**/*_spec.lua'] = { std = 'luajit+busted' }
files['tests/**/*_spec.lua'] = { std = 'luajit+busted' }
