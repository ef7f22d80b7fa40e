"""Writes the Lua library as C++ text: embed_lua.py LUA_FOLDER OUTPUT. Leaves out stubs (`---@meta`),
which only editors read. Rewrites only what changed."""
import os
import sys

folder, output = sys.argv[1:]
rows = []
for root, dirs, names in os.walk(folder):
    dirs.sort()
    for name in sorted(names):
        if not name.endswith(".lua"):
            continue
        path = os.path.relpath(os.path.join(root, name), folder)
        module = path[:-4].replace(os.sep, ".")
        if module.endswith(".init"):
            module = module[:-5]
        with open(os.path.join(root, name), "rb") as f:
            text = f.read()
        if not text.startswith(b"---@meta"):
            rows.append((module, path, text))

out = ['#include "script/library.h"', "namespace nns::script {", "const EmbeddedFile kEmbedded[] = {"]
for module, path, text in sorted(rows):
    # Pieces below the length limit of a string literal; octal escapes cannot run on.
    pieces = [text[i : i + 4000] for i in range(0, len(text), 4000)] or [b""]
    literal = "\n    ".join(
        '"' + "".join(chr(c) if 32 <= c < 127 and c not in b'"\\?' else "\\%03o" % c for c in p) + '"' for p in pieces
    )
    out.append(f'  {{"{module}", "{path}",\n    {literal}, {len(text)}}},')
if not rows:
    out.append('  {"", "", "", 0},')
out += ["};", f"const size_t kEmbeddedCount = {len(rows)};", "}  // namespace nns::script", ""]
data = "\n".join(out)
try:
    with open(output) as f:
        same = f.read() == data
except OSError:
    same = False
if not same:
    with open(output, "w") as f:
        f.write(data)
