"""Exports a PyTorch model for nnscaler: python export.py MODULE:FUNCTION MODEL.pt2

MODULE is a Python file or an importable name. FUNCTION returns (model, arguments): a torch.nn.Module
whose forward returns the loss, or whatever a loss in Lua is made of, and a tuple of example arguments.
Sizes of dimension 0 are the same in all arguments and may vary, unless --static is given; --eval
exports the evaluation variant, --double a model in float64.
"""
import argparse
import importlib
import os
import sys

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", metavar="MODULE:FUNCTION")
    parser.add_argument("path", metavar="MODEL.pt2")
    for option in ("static", "eval", "double"):
        parser.add_argument("--" + option, action="store_true")
    args = parser.parse_args()
    name, function = args.source.rsplit(":", 1)
    sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
    module = importlib.import_module(os.path.basename(name).removesuffix(".py"))
    model, inputs = getattr(module, function)()
    model = model.double() if args.double else model
    inputs = tuple(x.double() if args.double and x.is_floating_point() else x for x in inputs)
    rows = torch.export.Dim.DYNAMIC
    shapes = None if args.static else tuple({0: rows} for _ in inputs)
    program = torch.export.export(model.train(not args.eval), inputs, strict=False,
                                  dynamic_shapes=shapes)
    torch.export.save(program, args.path)


main()
