--- One rank of second_start_spec, as comm.run_local starts it.
return require('tests.lua.support.start_cases').rank
