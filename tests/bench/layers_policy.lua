--- The hand-made plan of tests/lua/support/layers.lua as a policy file.
return require('tests.lua.support.layers').policy
