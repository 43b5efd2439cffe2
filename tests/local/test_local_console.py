"""A terminal that goes away ends the printing, not the run."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, time
from areal.local.display import lossy_console
console = lossy_console()
for number in range(1000):
    console.print(f"line {number}")
    if number == 2:
        time.sleep(0.3)
print("went on", file=sys.stderr)
"""


def test_a_closed_pipe_stops_no_program():
    command = f"{sys.executable} -c '{PROGRAM}' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["line 0", "0"]
    assert done.stderr == "went on\n"


def test_a_stream_that_is_closed_at_the_start_stops_no_program():
    command = f"exec 1>&-; {sys.executable} -c '{PROGRAM}'"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "went on\n")
