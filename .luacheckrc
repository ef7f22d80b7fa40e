std = 'luajit'
max_line_length = 100
globals = {}
read_globals = {}
files['tests/lua/**/*_spec.lua'] = { std = 'luajit+busted' }
files['tests/**/*_spec.lua'] = { std = 'luajit+busted' }
