"""Sound files from which the fuzzer begins: seeds.py FOLDER writes FOLDER/TARGET/….
needs: torch safetensors
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

import torch
from safetensors.torch import save

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/equivalence/pytorch"))
import export  # noqa: E402


def put(target, name, data):
    folder = pathlib.Path(sys.argv[1], target)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


put("safetensors", "two", save({"a.b": torch.zeros(2, 3), "c": torch.ones(4, dtype=torch.int64)},
                               metadata={"format": "pt"}))
put("safetensors", "none", save({}))

for path in (ROOT / "tests/lua/tokenizers").glob("*.json"):
    if path.stem.endswith(".cases"):
        continue
    whole = json.loads(path.read_text())
    if "vocab" in whole["model"]:  # few tokens, so that changes reach the rest
        kept = dict(list(whole["model"]["vocab"].items())[:270])
        whole["model"]["vocab"] = kept
        whole["model"]["merges"] = [m for m in whole["model"]["merges"]
                                    if "".join(m if isinstance(m, list) else m.split()) in kept]
    put("tokenizer", path.stem, json.dumps(whole).encode())

for path in (ROOT / "configs").glob("*.yaml"):
    put("yaml", path.stem, path.read_bytes())
for i, text in enumerate(re.findall(r"```yaml[^\n]*\n(.*?)```", "".join(
        page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))), re.S)):
    put("yaml", f"page{i}", text.encode())

# Records of a small model: the graph and a rank's program, each behind a line that says of what.
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([ROOT / "build/nnscaler", "compile", "recipes/quickstart.lua", "pas_policy=dp",
                    f"gen_savedir={folder}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    for path in pathlib.Path(folder).rglob("*.json"):
        put("json", path.stem, path.read_bytes().split(b"\n", 1)[1])

path = pathlib.Path(sys.argv[1], "seed.pt2")
for name in ("body", "mlp"):
    case = export.CASES[name]()
    model, args = (case.body, case.arguments(6)[:1]) if name == "body" else (case, case.arguments(6))
    export.export(model, args, path)
    with zipfile.ZipFile(path) as archive:
        records = {n.split("/", 1)[1]: archive.read(n) for n in archive.namelist()}
    put("pt2", name, records["models/model.json"] + b"\0"
        + records["data/weights/model_weights_config.json"])
