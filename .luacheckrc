std = 'luajit'
max_line_length = 100
self = false -- methods need not use it
globals = {}
read_globals = {}
files['tests/lua/**/*_spec.lua'] = { std = 'luajit+busted' }
files['tests/**/*_spec.lua'] = { std = 'luajit+busted' }
