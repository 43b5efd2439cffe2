"""Slurm's commands as scripts: what they answer and what they were asked are files of a folder.

`srun` runs the command of its step here; a step is listed while it runs, beside those of the file `steps`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_COMMON = """#!{python} -IS
import os, signal, sys, time
from pathlib import Path
root = Path({root!r})
with (root / "asked").open("a") as file:
    file.write(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
"""
_SCRIPTS = {
    "squeue": """
print((root / "steps").read_text(), end="")
for path in root.glob("pid-*"):
    print(path.name.removeprefix("pid-").replace("+", " "))
""",
    "scancel": """
name, step = sys.argv[1].partition("=")[2], sys.argv[2]
for path in root.glob(f"pid-{step}+*"):
    os.kill(int(path.read_text()), getattr(signal, "SIG" + name))
(root / "steps").write_text("".join(
    line for line in (root / "steps").read_text().splitlines(True) if name != "KILL" or line.split()[0] != step
))
""",
    "srun": """
place = sys.argv.index("--input=none") + 1
option = dict(zip(sys.argv[1:place], sys.argv[2:place]))
def on_term(*_):
    (root / "srun-terminated").touch()
signal.signal(signal.SIGTERM, on_term)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os.environ.update(SLURMD_NODENAME=option["-w"].split(",")[-1], SLURM_PROCID=str(int(option["-N"]) - 1))
    os.execvp(sys.argv[place], sys.argv[place:])
file = root / f"pid-7.4+{option['-J']}"
file.write_text(str(child))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
file.unlink()
sys.exit(status if status >= 0 else 128 - status)
""",
    "sbatch": "print('17;lab')\n",
    "scontrol": """
if sys.argv[1:3] == ["show", "hostnames"]:
    print("n0\\nn1")
elif sys.argv[1:3] == ["show", "node"]:
    print((root / sys.argv[4]).read_text())
""",
}


class ScriptedSlurm:
    """The folder and its scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir(parents=True)
        (root / "steps").touch()
        (root / "asked").touch()
        for name, text in _SCRIPTS.items():
            path = root / "bin" / name
            path.write_text(_COMMON.format(python=sys.executable, root=str(root)) + text)
            path.chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.root / 'bin'}:{os.environ['PATH']}"

    @property
    def asked(self) -> list[str]:
        return (self.root / "asked").read_text().splitlines()
