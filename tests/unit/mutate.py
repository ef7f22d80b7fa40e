#!/usr/bin/env python3
"""Plants faults in src/lower, one at a time, and tells which the unit tests find.

    tests/unit/mutate.py [-n 50] [--seed 1] [--build build] [--files PATTERN] [--list]

A fault is one changed operator, constant or condition, or one deleted statement. Only the changed
file is compiled; it is linked in front of the planner core of the build folder, whose unit tests
must be built. The same seed plants the same faults. Sources are never written. A program that takes
many times what the sound one takes, of time or of memory, counts as found.
"""
import argparse
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SWAPS = [(r' == ', ' != '), (r' != ', ' == '), (r' \+ ', ' - '), (r' - ', ' + '), (r' < ', ' <= '),
         (r' <= ', ' < '), (r' > ', ' >= '), (r' >= ', ' > '), (r' && ', ' || '),
         (r' \|\| ', ' && '), (r' \* ', ' + '), (r'(?<![\w.])0(?![\w.])', '1'),
         (r'(?<![\w.])1(?![\w.])', '2'), (r'\btrue\b', 'false'), (r'\bfalse\b', 'true'),
         (r'\bif \((?!const|auto|!)([^;{]*)\)(?= [\w{]|$)', r'if (!(\1))')]
# A call or an assignment that fills a line of its own.
STATEMENT = re.compile(r'^\s+[a-z_][\w.>\[\]()-]*(\.\w+|\w)(\(.*\)| [+|&-]?= .*);$')
# Groups of tests in the order in which they run: those that find most, then the long ones.
GROUPS = ('~[solve]~[lower]~[fuzz]', '[solve],[lower],[fuzz]')
MEMORY = 12 << 30  # bytes of addresses that a faulty program may ask for
DECLARES = re.compile(r'^\s*(const|auto|return|using|case|throw|int|size_t|bool|double|static|fail)\b')


def faults_of(source):
    """(line number, new line, what) for every fault that one can plant in a file."""
    out, lines = [], source.read_text().splitlines()
    for n, line in enumerate(lines):
        code = line.split('//')[0]
        if not code.strip() or code.startswith('#') or re.search(r'fail\(|NNS_CHECK|"', code):
            continue  # texts of errors and names of operators
        for pattern, new in SWAPS:
            for match in re.finditer(pattern, code):
                changed = code[:match.start()] + match.expand(new) + code[match.end():]
                out.append((n, changed, f'{match.group(0).strip()} → {match.expand(new).strip()}'))
        if STATEMENT.match(code) and not DECLARES.match(code) and lines[n - 1].endswith(
                ('{', ';', '}')):
            out.append((n, '', 'deleted'))
    return out


def place_of(source, n, what):
    line = source.read_text().splitlines()[n].strip()
    return f'{source.relative_to(ROOT)}:{n + 1}: {what}: {line}'


class Tests:
    """The unit tests of a build folder, with one file of the core in front of the others."""

    def __init__(self, build):
        self.objects = [str(o) for o in sorted((build / 'tests/unit/unit_tests.p').glob('*.o'))]
        self.build = build
        self.seconds = {}  # of the processor, by group, in the sound program
        if not self.objects:
            sys.exit(f'{build} has no unit tests; build them first: ninja -C {build} '
                     'tests/unit/unit_tests')
        torch = subprocess.run([sys.executable, ROOT / 'tools/torch_dir.py', ''],
                               capture_output=True, text=True, check=True).stdout.strip()
        self.compile = [*(['ccache'] if shutil.which('ccache') else []), 'g++', '-std=c++20', '-O0',
                        '-fPIC', '-DFMT_HEADER_ONLY', f'-I{ROOT}/src', '-isystem',
                        torch + '/include', '-c']

    def find(self, source, folder):
        """Whether a test fails with `source` in the core; nothing where it does not compile."""
        made, program = folder / 'fault.o', folder / 'unit_tests'
        if subprocess.run([*self.compile, str(source), '-o', str(made)],
                          capture_output=True).returncode != 0:
            return None
        mold = ['-fuse-ld=mold'] if shutil.which('mold') else []
        subprocess.run(['g++', *mold, '-rdynamic', '-pthread', '-o', str(program), str(made),
                        *self.objects, str(self.build / 'tests/unit/libcatch_main.a'),
                        f'-L{self.build}', '-lnnscaler_core', f'-Wl,-rpath,{self.build}',
                        '-lrapidcheck', '-lluajit-5.1', '-lhwy'], check=True)
        return any(self.fails(program, group) for group in GROUPS)

    def fails(self, program, group):
        """Whether a test of the group fails, or takes far longer than in the sound program."""
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if group in self.seconds:
                seconds = int(4 * self.seconds[group]) + 10
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            done = subprocess.run([str(program), '-a', group], cwd=ROOT, capture_output=True,
                                  preexec_fn=limit, timeout=1200)
        except subprocess.TimeoutExpired:
            return True
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.seconds.setdefault(group, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)
        return done.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('-n', '--number', type=int, default=50, help='faults to plant')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build')
    parser.add_argument('--files', default='', metavar='PATTERN', help='plant in these alone')
    parser.add_argument('--list', action='store_true', help='print the faults, plant none')
    options = parser.parse_args()
    sources = [s for s in sorted((ROOT / 'src/lower').rglob('*.cpp'))
               if re.search(options.files, str(s.relative_to(ROOT)))]
    faults = [(source, *fault) for source in sources for fault in faults_of(source)]
    random.Random(options.seed).shuffle(faults)
    if options.list:
        for source, n, _, what in faults[:options.number]:
            print(place_of(source, n, what))
        return
    tests = Tests(options.build.resolve())
    found = tried = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if tests.find(sources[0], folder):
            sys.exit('the tests fail before any fault is planted')
        for source, n, changed, what in faults:
            if tried == options.number:
                break
            lines = source.read_text().splitlines()
            place = place_of(source, n, what)
            lines[n] = changed
            copy = folder / source.name
            copy.write_text('\n'.join(lines) + '\n')
            seen = tests.find(copy, folder)
            if seen is None:
                continue  # not C++
            tried, found = tried + 1, found + seen
            print('found   ' if seen else 'SURVIVED', place, flush=True)
    print(f'{found} of {tried} faults found (seed {options.seed})')


if __name__ == '__main__':
    main()
