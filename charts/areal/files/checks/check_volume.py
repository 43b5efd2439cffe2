"""Two pods, one volume: pod 0 writes a file and waits for the answer of pod 1, which reads it and writes one."""

import argparse
import os
import sys
import time
from pathlib import Path


def await_text(path, deadline_s):
    """What a file holds once it is there, whole; None when it never came."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            return path.read_text()
        except FileNotFoundError:
            time.sleep(1)
    return None


def write(path, text):
    """Seen by others whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--deadline-s", type=float, default=240)
    asked = parser.parse_args()
    index = int(os.environ["JOB_COMPLETION_INDEX"])
    question, answer = asked.directory / "question", asked.directory / "answer"
    if index == 0:
        write(question, "written by pod 0")
        waited_for = answer
    else:
        waited_for = question
    text = await_text(waited_for, asked.deadline_s)
    if text is None:
        print(f"pod {index} never saw {waited_for}: the volume is not shared between pods")
        return 1
    if index == 1:
        write(answer, f"pod 1 read: {text}")
    print(f"pod {index} read {text!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
