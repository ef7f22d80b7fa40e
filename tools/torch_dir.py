"""Prints the folder of the torch package: the argument if given, else that of the shared environment."""
import glob
import os
import sys

if len(sys.argv) > 1 and sys.argv[1]:
    print(sys.argv[1])
    sys.exit()
cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
venv = os.environ.get("NNSCALER_VENV", os.path.join(cache, "nnscaler", "venv"))
found = sorted(glob.glob(os.path.join(venv, "lib", "python3*", "site-packages", "torch")))
if not found:
    sys.exit(f"no torch package under {venv}; run `make setup`, or pass -Dtorch_dir=FOLDER")
print(found[-1])
