"""Exported programs that must be refused: damaged ones, and those that a graph cannot hold.

usage: damaged.py FOLDER
Writes whole.pt2, one file a case (tests/cli/import_spec.lua says what each is refused for), and
random-0.pt2 to random-299.pt2, each with a few random changes to its JSON.
"""
import json
import os
import random
import sys
import zipfile

import torch
from torch import nn

MODEL = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        return (self.fc(x) * self.scale).sum()


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Loop(nn.Module):
    def forward(self, x):
        return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))


class Writes(nn.Module):
    def forward(self, x):
        x.mul_(2)
        return x.sum()


class Parameter(Model):
    def forward(self, x):
        with torch.no_grad():
            self.fc.weight.mul_(0.9)
        return self.fc(x).sum()


class Pieces(Model):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(3, 2, bias=False)
        self.part.weight = nn.Parameter(self.fc.weight.detach()[:2])

    def forward(self, x):
        return self.fc(x).sum() + self.part(x).sum()


class Autocast(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ x.t()).sum()


class Counts(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


def read(path):
    with zipfile.ZipFile(path) as archive:
        return {n.split("/", 1)[1]: archive.read(n) for n in archive.namelist()}


def write(path, records, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr("whole/" + name, data)


class Cases:
    def __init__(self, folder):
        self.folder = folder
        self.whole = read(self.path("whole"))

    def path(self, case):
        return os.path.join(self.folder, case + ".pt2")

    def bytes(self, case, data):
        with open(self.path(case), "wb") as file:
            file.write(data)

    def records(self, case, changes):
        kept = {k: v for k, v in (self.whole | changes).items() if v is not None}
        write(self.path(case), kept)

    def changed(self, case, record, change):
        content = json.loads(self.whole[record])
        change(content)
        self.records(case, {record: json.dumps(content).encode()})

    def weight(self, case, change):
        self.changed(case, WEIGHTS, lambda c: change(c["config"]["fc.weight"]))

    def graph(self, case, change):
        self.changed(case, MODEL, lambda c: change(c["graph_module"]["graph"]))

    def signature(self, case, change):
        self.changed(case, MODEL, lambda c: change(c["graph_module"]["signature"]))


def sizes(values):
    return [{"as_int": n} for n in values]


def damage(cases):
    with open(cases.path("whole"), "rb") as file:
        whole = file.read()
    cases.bytes("truncated", whole[: len(whole) // 2])
    cases.bytes("empty", b"")
    cases.bytes("text", b"hello")
    weight = cases.whole["data/weights/weight_0"]
    cases.records("other_kind", {"archive_format": None})
    cases.records("old", {"archive_format": None, "serialized_exported_program.json": b"{}"})
    cases.records("version", {"archive_version": b"7"})
    cases.records("big_endian", {"byteorder": b"big"})
    cases.records("no_model", {MODEL: None})
    cases.records("no_json", {MODEL: b'{"graph_module": '})
    cases.records("deep", {MODEL: b"[" * 100000 + b"]" * 100000})
    write(cases.path("bomb"), cases.whole | {MODEL: b" " * 2**26}, zipfile.ZIP_DEFLATED)
    cases.records("no_record", {"data/weights/weight_0": None})
    cases.records("short_record", {"data/weights/weight_0": weight[:-4]})
    cases.records("no_weights", {WEIGHTS: None})
    cases.changed("schema", MODEL, lambda c: c.update(schema_version={"major": 99, "minor": 0}))

    meta = "tensor_meta"
    cases.weight("pickled", lambda w: w.update(use_pickle=True))
    cases.weight("huge", lambda w: w[meta].update(sizes=sizes([2**40, 2**40])))
    cases.weight("negative", lambda w: w[meta].update(sizes=sizes([-4, 3])))
    cases.weight("offset", lambda w: w[meta].update(storage_offset={"as_int": 2**62}))
    cases.weight("strides", lambda w: w[meta].update(strides=sizes([2**62, 2])))
    cases.weight("spread", lambda w: w[meta].update(sizes=sizes([2**50, 3]), strides=sizes([0, 1])))
    cases.weight("dtype", lambda w: w[meta].update(dtype=99))
    cases.weight("rank", lambda w: w[meta].update(strides=sizes([3])))

    cases.graph("unknown_value", lambda g: g["nodes"][1]["inputs"][0]["arg"].update(
        as_tensor={"name": "nowhere"}))
    cases.graph("twice", lambda g: g["nodes"].append(g["nodes"][0]))
    cases.graph("kind", lambda g: g["nodes"][1]["inputs"].append(
        {"name": "other", "arg": {"as_something": 1}, "kind": 1}))
    cases.graph("operator", lambda g: g["nodes"][1].update(target="torch.ops.mylib.twice.default"))
    cases.graph("function", lambda g: g["nodes"][1].update(target="os.system"))
    cases.graph("higher", lambda g: g["nodes"][1].update(target="torch.ops.higher_order.scan"))
    cases.graph("argument", lambda g: g["nodes"][0]["inputs"][1].update(
        arg={"as_string": "weight"}))
    cases.signature("inputs", lambda s: s["input_specs"].pop())
    cases.signature("outputs", lambda s: s["output_specs"].pop())
    cases.signature("joint", lambda s: s["output_specs"].__setitem__(
        0, {"loss_output": {"arg": {"name": "sum_1"}}}))


ODD = [None, True, -1, 0, 2**62, 2**63 - 1, 1.5, "", "x", "\x00", [], {}, [[]], {"as_int": -2},
       {"as_none": True}, {"as_tensor": {"name": "x"}}, {"as_tensors": [{"name": "x"}] * 3},
       {"as_sym_int": {"as_name": "s0"}}, "torch.ops.aten.add.Tensor", "torch.ops.aten.detach_.default"]


def leaves(value, found):
    """Places (holder, key) in nested lists and tables."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            leaves(value[key], found)
    return found


def change_at_random(draw, content):
    places = leaves(content, [])
    holder, key = draw.choice(places)
    other, at = draw.choice(places)
    kind = draw.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        holder[key] = draw.choice(ODD)
    elif kind == 2:
        holder[key] = json.loads(json.dumps(other[at]))
    elif kind == 3 and isinstance(holder, list):
        holder.insert(key, json.loads(json.dumps(holder[key])))
    elif kind == 4 and isinstance(holder[key], int):
        holder[key] += draw.choice([-1, 1, 2**31])


def damage_at_random(cases):
    draw = random.Random(1)
    for i in range(300):
        content = {name: json.loads(cases.whole[name]) for name in (MODEL, WEIGHTS)}
        for _ in range(draw.randint(1, 3)):
            change_at_random(draw, content[MODEL if draw.random() < 0.8 else WEIGHTS])
        cases.records(f"random-{i}", {k: json.dumps(v).encode() for k, v in content.items()})


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    x = torch.randn(2, 3)

    def export(case, model):
        torch.export.save(torch.export.export(model, (x,), strict=False),
                          os.path.join(folder, case + ".pt2"))

    for case, model in {"whole": Model(), "branch": Branch(), "loop": Loop(), "writes": Writes(),
                        "autocast": Autocast(), "counts": Counts(), "parameter": Parameter(),
                        "pieces": Pieces()}.items():
        export(case, model)
    cases = Cases(folder)
    damage(cases)
    damage_at_random(cases)


main()
