"""Robot that types the commands of pages, in order, in an account with a clone and no environment variables.

`fresh_account` makes such an account on this machine and takes it away again; only root can.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
NETWORK = re.compile(r"(SSL_CERT|PIP_CERT|PIP_INDEX|UV_INDEX|UV_DEFAULT_INDEX|(https?|no)_proxy$)", re.I)
NOT_TYPED = {  # how a command begins → why a robot doesn't type it
    "make test": "is the tests themselves",
    "make check": "is the tests themselves",
    "make nightly": "is the tests themselves",
    "make images": "builds images",
    "helm ": "needs a cluster",
    "kubectl ": "needs a cluster",
    "areal submit": "needs a cluster",
    "hf ": "downloads a model",
    "pip install": "is for another machine, or another environment",
    "xdg-open": "needs a desktop",
    "kill ": "needs a run that goes on beside it",
}
SERVERS = ("areal view",)  # run until Ctrl-C, which comes after so many seconds
SERVED_S = 10
_FILE = re.compile(r"<!-- ([\w-]+\.(?:py|yaml)) -->$")


@dataclass(frozen=True)
class Typed:
    """One command, its exit status, and how many seconds it took."""

    command: str
    status: int
    seconds: int


def commands_of(page: Path, *, until: str | None = None) -> list[str]:
    """The commands of a page's blocks, up to the heading `until`, but for blocks that say why they aren't run.

    A block under a comment that names a file is the command that writes it.
    """
    text = page.read_text()
    lines = (text.partition(f"\n## {until}\n")[0] if until else text).splitlines()
    found: list[str] = []
    starts = [number for number, line in enumerate(lines) if line.startswith("```")]
    for start, end in zip(starts[::2], starts[1::2], strict=True):
        mark, block = lines[start - 1], lines[start + 1 : end]
        if file := _FILE.match(mark):
            found.append(f"printf '%s\\n' {shlex.join(block)} > {file[1]}")
        elif lines[start] in ("```", "```bash") and not mark.startswith("<!-- not run: "):
            typed = [re.sub(r"\s{2,}#.*", "", line).strip() for line in block]
            found += [command for command in typed if command and not command.startswith(tuple(NOT_TYPED))]
    return found


@dataclass(frozen=True)
class Newcomer:
    """An account: `user` to become, or None for this one's; `home` with nothing in it but a clone, `clone`."""

    home: Path
    clone: Path
    user: str | None = None

    def types(self, commands: Sequence[str], *, cwd: Path | None = None, timeout_s: float = 1800) -> list[Typed]:
        """Type one after the other into one shell, up to the first that fails.

        Raises AssertionError for one that fails, with the end of what it said.
        """
        script = "".join(f"typed {shlex.quote(command)}\n" for command in commands)
        begin = [*(["runuser", "-u", self.user, "--"] if self.user else []), "env", "-i", *self._environment()]
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.run(
                [*begin, "bash", "-c", _SHELL + script], cwd=cwd or self.clone, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, timeout=timeout_s,
            )  # fmt: skip
            said.seek(0)
            text = said.read()
        typed = [Typed(one[3], int(one[1]), int(one[2])) for one in re.finditer(r"^@@ (\d+) (\d+) (.*)$", text, re.M)]
        assert done.returncode == 0, f"{typed[-1] if typed else script}\n{text[-4000:]}"
        assert len(typed) == len(commands)
        return typed

    def _environment(self) -> list[str]:
        network = [f"{name}={value}" for name, value in os.environ.items() if NETWORK.match(name)]  # of this machine
        return [f"HOME={self.home}", f"USER={self.user or 'me'}", "PATH=/usr/local/bin:/usr/bin:/bin", *network]


_SHELL = f"""
typed() {{
  local began=$SECONDS status=0
  echo "$ $1"
  case $1 in
    {"|".join(f'"{server}"*' for server in SERVERS)})
      timeout --foreground -s INT {SERVED_S} $1; status=$?
      [ $status != 124 ] || status=0 ;;
    *) eval "$1"; status=$? ;;
  esac
  printf '\\n@@ %s %s %s\\n' "$status" "$((SECONDS - began))" "$1"
  [ "$status" = 0 ] || exit "$status"
}}
"""


def no_accounts() -> str:
    """Why this machine makes no account; empty when it does."""
    if os.geteuid() != 0:
        return "only root can make an account"
    lacking = [name for name in ("useradd", "userdel", "runuser") if shutil.which(name) is None]
    return f"{', '.join(lacking)} not installed" if lacking else ""


@contextmanager
def fresh_account(name: str = "areal-newcomer") -> Iterator[Newcomer]:
    """A new account whose home holds a clone of what is committed here; gone afterwards, with all that it started."""
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True)
    home = Path(f"~{name}").expanduser()
    try:
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(home / "areal")], check=True)
        subprocess.run(["chown", "-R", f"{name}:", str(home)], check=True)
        yield Newcomer(home, home / "areal", name)
    finally:
        for process in psutil.process_iter(["username"]):
            if process.info["username"] == name:
                process.kill()
        subprocess.run(["userdel", "--remove", "--force", name], check=False, capture_output=True)
