#!/usr/bin/env python3
"""Tells how many lines of the planner core the unit tests run, by themselves.

    tests/unit/coverage.py [--build build-cov] [--missing FOLDER]

Makes the build folder with counters where it is missing, builds the unit tests there, runs them and
prints the share of lines per folder of src, from base to codegen. --missing lists the lines of a
folder that no test runs.
"""
import argparse
import collections
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ('base', 'graph', 'annotate', 'operators', 'plan', 'lower', 'codegen')
TESTS = 'tests/unit/unit_tests'


def run_tests(build):
    if not (build / 'build.ninja').exists():
        cxx = ' '.join(['ccache'] * bool(shutil.which('ccache')) + ['g++'])
        subprocess.run(['meson', 'setup', str(build), '-Db_coverage=true',
                        '-Doptimization=0'], cwd=ROOT, check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, 'CXX': cxx})
    subprocess.run(['ninja', '-C', str(build), TESTS], check=True, stdout=subprocess.DEVNULL)
    for old in build.rglob('*.gcda'):
        old.unlink()
    subprocess.run([str(build / TESTS)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def counts(build):
    """How often each line was run: {file: {line: count}} with files relative to src."""
    lines = collections.defaultdict(lambda: collections.defaultdict(int))
    notes = [str(n) for n in sorted((build / 'libnnscaler_core.so.p').glob('*.gcno'))]
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(['gcov', '--json-format', '--stdout', *notes], cwd=folder, check=True,
                              capture_output=True, text=True).stdout
    for text in said.splitlines():
        for file in json.loads(text)['files']:
            path = pathlib.Path(os.path.normpath(build / file['file']))
            if not path.is_relative_to(ROOT / 'src'):
                continue
            for line in file['lines']:
                lines[path.relative_to(ROOT / 'src')][line['line_number']] += line['count']
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', type=pathlib.Path, default=ROOT / 'build-cov')
    parser.add_argument('--missing', choices=FOLDERS, metavar='FOLDER')
    options = parser.parse_args()
    build = options.build.resolve()
    run_tests(build)
    all_lines = counts(build)
    run = total = 0
    for folder in FOLDERS:
        of = [lines for path, lines in all_lines.items() if path.parts[0] == folder]
        n, hit = sum(len(lines) for lines in of), sum(c > 0 for lines in of for c in lines.values())
        run, total = run + hit, total + n
        print(f'{folder:10} {hit:6} of {n:6} lines  {100 * hit / max(n, 1):5.1f} %')
    print(f'{"all":10} {run:6} of {total:6} lines  {100 * run / max(total, 1):5.1f} %')
    if options.missing:
        for path, lines in sorted(all_lines.items()):
            if path.parts[0] == options.missing:
                for number in sorted(n for n, c in lines.items() if c == 0):
                    print(f'src/{path}:{number}')


if __name__ == '__main__':
    main()
