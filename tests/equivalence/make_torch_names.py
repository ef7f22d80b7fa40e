"""Writes tests/lua/torch_names.lua: the names of torch.nn and torch.nn.functional.

Run by hand for another version:  python tests/equivalence/make_torch_names.py > tests/lua/torch_names.lua
"""
import textwrap

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = sorted(n for n in dir(nn) if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Module)
                 and not n.startswith('_'))
IMPORTED = {'Tensor', 'TYPE_CHECKING', 'Optional', 'Union', 'Callable', 'List', 'Tuple', 'DType', 'BroadcastingList1',
            'assert_int_or_pair', 'boolean_dispatch', 'has_torch_function', 'has_torch_function_unary',
            'has_torch_function_variadic', 'handle_torch_function', 'deprecated', 'overload'}
FUNCTIONS = sorted(n for n in dir(F) if callable(getattr(F, n)) and n not in IMPORTED and n == n.lower()
                   and not n.startswith('_') and not n.endswith('_') and not n.endswith('_with_indices'))


def show(title, names):
    lines = textwrap.wrap(' '.join(names), 92)
    print('  %s = [[' % title)
    for line in lines:
        print('    ' + line)
    print('  ]],')


print('--- The names of torch.nn and torch.nn.functional; written by')
print('--- tests/equivalence/make_torch_names.py.')
print('return {')
print("  version = '%s'," % '.'.join(torch.__version__.split('+')[0].split('.')[:2]))
show('modules', CLASSES)
show('functions', FUNCTIONS)
print('}')
