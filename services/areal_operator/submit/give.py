"""Gives files to `areal pull`, in a pod that mounts the run: python3 -c <this file> DIRECTORY LEFT_OUT PART...

Owns what leaves DIRECTORY: files below the parts (all for `.`), no links, nothing hidden, none of LEFT_OUT. Writes
a JSON line that lists them with sizes and digests; reads one: from which byte on each one is wanted; then writes what
each one had when it was listed, as lines of base64 and a dot. Needs the standard library only.
"""

import base64
import hashlib
import json
import os
import sys

INDEX = ".metadata"  # of a checkpoint's tensors: hidden, and part of the run
BLOCK = 48 << 10  # a line of it fits into a frame of the exec protocol


def main() -> None:
    root, left_out = os.path.realpath(sys.argv[1]), set(sys.argv[2].split())
    files = sorted({path for part in sys.argv[3:] for path in below(root, os.path.normpath(part), left_out)})
    sizes = {path: os.path.getsize(os.path.join(root, path)) for path in files}  # one that grows is given up to here
    say([{"path": path, "size": size, "sha256": digest(root, path, size)} for path, size in sizes.items()])
    for path, start in json.loads(sys.stdin.readline()).items():
        for block in blocks(root, path, start, sizes[path]):
            print(base64.b64encode(block).decode())
        print(".", flush=True)
    sys.stdin.readline()  # the other side has it all when it ends


def below(root: str, part: str, left_out: set) -> list:  # type: ignore[type-arg]
    place = os.path.join(root, part)
    found = [part] if os.path.isfile(place) else []
    for folder, folders, names in os.walk(place):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.relpath(os.path.join(folder, name), root)
            for name in names
            if name == INDEX or not name.startswith(".")
        ]
    regular = [path for path in found if not os.path.islink(os.path.join(root, path))]
    return [path for path in regular if path.split("/")[0] not in left_out]


def blocks(root: str, path: str, start: int, end: int):  # type: ignore[no-untyped-def]
    with open(os.path.join(root, path), "rb") as file:
        file.seek(start)
        while block := file.read(min(BLOCK, end - file.tell())):
            yield block


def digest(root: str, path: str, size: int) -> str:
    sha256 = hashlib.sha256()
    for block in blocks(root, path, 0, size):
        sha256.update(block)
    return sha256.hexdigest()


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        say({"error": type(error).__name__ + ": " + str(error)})
        sys.exit(1)
