"""Programs started by root that run as an ordinary user, who can reach the interpreter although root's home is closed.

The user gets a mount namespace in which root's home is an empty directory that everybody may enter, with nothing in it
but the interpreter's. Nothing of the machine changes.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

UID = 1000


def needs_root() -> str:
    """Why programs can't be started as another user; empty when they can."""
    return "" if os.geteuid() == 0 else "only root can start programs as another user"


def as_user(argv: Sequence[str], uid: int = UID, *, lasting: bool = False) -> list[str]:
    """What root executes to run `argv` as the user. `lasting`: it stays when the process that started it is gone."""
    home = os.path.expanduser("~root")
    inside = [path for path in {sys.prefix, sys.base_prefix} if path.startswith(home + "/")]
    steps = ["set -e"]
    for path in sorted(inside):
        stage = shlex.quote(path)
        steps += [
            f"mount --bind {stage} /mnt",
            f"mount -t tmpfs -o size=1m,mode=0755 none {shlex.quote(home)}",
            f"mkdir -p {stage}",
            f"mount --move /mnt {stage}",
        ]
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    if not lasting:
        drop += ["--pdeathsig=KILL"]
    steps.append(f'exec {shlex.join(drop)} -- env HOME=/tmp USER=runner "$@"')
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", "\n".join(steps), "sh", *argv]
