#!/usr/bin/env python3
"""Holds the order of folders: reads every #include in src and every require in lua/nnscaler and
complains of each that goes against it, then exits with 1. The order is that of the tables of
docs/design.md under "Folders" (src) and "The Lua library" (lua/nnscaler): what stands in a row may
use its own row and those above. Every folder, and every file of lua/nnscaler itself, stands in
exactly one row. `order.py [ROOT]`: another tree than this one."""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE
PAGE = ROOT / 'docs/design.md'

complaints = []


def declared(heading):
    """Rank of each name in the first column of the table below a heading."""
    text = PAGE.read_text()
    start = text.find(f'\n## {heading}\n')
    if start < 0:
        sys.exit(f'docs/design.md has no section "{heading}"')
    section = text[start + 1:].split('\n## ')[0]
    ranks, row = {}, 0
    for line in section.splitlines():
        cell = re.match(r'\| (`[^|]*`) \|', line)
        if not cell:
            continue
        row += 1
        for name in re.findall(r'`([^`]+)`', cell[1]):
            if name in ranks:
                complaints.append(f'docs/design.md: `{name}` stands in two rows of "{heading}"')
            ranks[name] = row
    return ranks


def compare(heading, ranks, found):
    """Complains of names that only the table or only the tree has."""
    for name in sorted(found - ranks.keys()):
        complaints.append(f'docs/design.md: "{heading}" has no row for `{name}`')
    for name in sorted(ranks.keys() - found):
        complaints.append(f'docs/design.md: "{heading}" has a row for `{name}`, which is not there')


def check(path, number, ranks, user, used, what):
    if user in ranks and used in ranks and ranks[used] > ranks[user]:
        complaints.append(
            f'{path}:{number}: `{user}` uses `{used}`, which stands below it: {what}')


def check_src():
    ranks = declared('Folders')
    src = ROOT / 'src'
    compare('Folders', ranks, {p.name for p in src.iterdir() if p.is_dir()})
    for path in sorted(src.rglob('*')):
        if path.suffix not in ('.h', '.cpp', '.cu', '.in'):
            continue
        user = path.relative_to(src).parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = re.match(r'\s*#\s*include "([^"/]+)/', line)
            if found:
                check(path.relative_to(ROOT), number, ranks, user, found[1], line.strip())


def unit(path):
    """Of lua/nnscaler/nn/linear.lua: nn; of lua/nnscaler/log.lua: log; of init.lua: nnscaler."""
    first = path.parts[0].removesuffix('.lua')
    return 'nnscaler' if first == 'init' else first


def check_lua():
    ranks = declared('The Lua library')
    library = ROOT / 'lua/nnscaler'
    files = sorted(library.rglob('*.lua'))
    compare('The Lua library', ranks, {unit(p.relative_to(library)) for p in files})
    for path in files:
        user = unit(path.relative_to(library))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith('--'):
                continue
            for name in re.findall(r"""require\s*\(?\s*['"]nnscaler([\w.]*)['"]""", line):
                used = name.strip('.').split('.')[0] or 'nnscaler'
                if used != '_C':
                    check(path.relative_to(ROOT), number, ranks, user, used, line.strip())


if __name__ == '__main__':
    check_src()
    check_lua()
    for complaint in complaints:
        print(complaint)
    sys.exit(bool(complaints))
