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


def open_home() -> str:
    """Lines of a shell script that, in a mount namespace of their own, let everybody reach this interpreter."""
    home = os.path.expanduser("~root")
    steps = ["set -e"]
    for path in sorted(path for path in {sys.prefix, sys.base_prefix} if path.startswith(home + "/")):
        place = shlex.quote(path)
        steps += [
            f"mount --bind {place} /mnt",
            f"mount -t tmpfs -o size=1m,mode=0755 none {shlex.quote(home)}",
            f"mkdir -p {place}",
            f"mount --move /mnt {place}",
        ]
    return "\n".join(steps)


def as_user(argv: Sequence[str], uid: int = UID) -> list[str]:
    """What root executes to run `argv` as the user. It ends when whoever started it ends."""
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    drop += ["--pdeathsig=KILL"]
    script = f'{open_home()}\nexec {shlex.join(drop)} -- env HOME=/tmp USER=runner "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *argv]
