"""Tells what a run's roles log, in a pod that mounts the run: python3 -c <this file> DIRECTORY OFFSETS

Owns the looking at DIRECTORY/logs: a JSON line of role and text for each whole line behind OFFSETS (JSON: bytes of each
file that the other side has), also of roles that log for the first time, and of a part that was rotated away. An empty
object each BEAT_S, so that both sides find out that the other is gone. Ends with its standard input. Needs the standard
library only.
"""

import json
import os
import select
import sys
import time
from contextlib import suppress

LOOK_S = 0.5
BEAT_S = 10.0


def main() -> None:
    logs, offsets = os.path.join(os.path.realpath(sys.argv[1]), "logs"), json.loads(sys.argv[2])
    parts: dict = {}  # type: ignore[type-arg]  # the inode of each file
    beat = 0.0
    while True:
        for name in sorted(os.listdir(logs) if os.path.isdir(logs) else ()):
            if name.endswith(".log") and not os.path.islink(os.path.join(logs, name)):
                with suppress(FileNotFoundError):  # it is rotated just now: the next look finds the new part
                    tell(logs, name, offsets, parts)
        if time.monotonic() >= beat:
            print("{}", flush=True)
            beat = time.monotonic() + BEAT_S
        if select.select([sys.stdin], [], [], LOOK_S)[0] and not sys.stdin.readline():
            return


def tell(logs: str, name: str, offsets: dict, parts: dict) -> None:  # type: ignore[type-arg]
    path, begun = os.path.join(logs, name), offsets.get(name, 0)
    found = os.stat(path)
    if found.st_size < begun or parts.get(name, found.st_ino) != found.st_ino:  # a new part: first the rest of the old
        with suppress(FileNotFoundError):
            told(name, path + ".1", begun)
        begun = 0
    parts[name] = found.st_ino
    offsets[name] = told(name, path, begun)


def told(name: str, path: str, begun: int) -> int:
    """Where the next line begins, once those behind `begun` are told."""
    with open(path, "rb") as file:
        file.seek(begun)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    for text in whole.decode(errors="replace").splitlines():
        print(json.dumps({"role": name[: -len(".log")], "text": text}), flush=True)
    return begun + len(whole)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(json.dumps({"error": type(error).__name__ + ": " + str(error)}), flush=True)
        sys.exit(1)
