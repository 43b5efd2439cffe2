"""Takes files from `areal submit`, in a pod that mounts the job's volume: python3 -c <this file> DIRECTORY.

Owns what is written below DIRECTORY. Promises that a file stands under its name only when it is whole and has its
digest. Reads from standard input a length (8 bytes, big-endian), a manifest (JSON: a list of {path, size, sha256}), and
a tar stream of the files that it said are missing. Writes one JSON line after each of the last two. Uses the standard
library only, because it is sent as text to whatever Python the image has.
"""

import hashlib
import json
import os
import sys
import tarfile

BLOCK = 1 << 20
PART = ".areal-part"  # hidden, so that no one who reads the folder takes it for a file of the folder


def main() -> None:
    root = sys.argv[1]
    given = sys.stdin.buffer
    length = int.from_bytes(given.read(8), "big")
    manifest = {entry["path"]: entry for entry in json.loads(given.read(length))}
    for path in manifest:
        refuse_outside(path)
    missing = [path for path, entry in manifest.items() if not is_there(os.path.join(root, path), entry)]
    say({"missing": missing})
    if not missing:
        return
    received, wrong = 0, []
    with tarfile.open(fileobj=given, mode="r|") as stream:
        for member in stream:
            if member.name not in manifest or not member.isfile():
                raise ValueError("not in the manifest: " + member.name)
            source = stream.extractfile(member)
            if take(source, os.path.join(root, member.name), manifest[member.name]):
                received += 1
            else:
                wrong.append(member.name)
    say({"received": received, "wrong": wrong})


def refuse_outside(path: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or not all(part not in ("", ".", "..") for part in parts):
        raise ValueError("a path outside of the directory: " + path)


def is_there(path: str, entry: dict) -> bool:  # type: ignore[type-arg]
    if not os.path.isfile(path) or os.path.getsize(path) != entry["size"]:
        return False
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK), b""):
            sha256.update(block)
    return bool(sha256.hexdigest() == entry["sha256"])


def take(source, path: str, entry: dict) -> bool:  # type: ignore[no-untyped-def, type-arg]
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    part = os.path.join(folder, PART + "-" + name)
    sha256 = hashlib.sha256()
    with open(part, "wb") as file:
        for block in iter(lambda: source.read(BLOCK), b""):
            sha256.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if sha256.hexdigest() != entry["sha256"]:
        os.unlink(part)
        return False
    os.replace(part, path)
    return True


def say(answer: dict) -> None:  # type: ignore[type-arg]
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        say({"error": type(error).__name__ + ": " + str(error)})
        sys.exit(1)
