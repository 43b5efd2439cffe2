"""Where the Kubernetes programs of the tests are, and how tests call `kubectl` and `helm`.

`KUBE_ASSETS` names a folder of binaries (setup-envtest's, or one's own build); without it they are the ones that
`make k8s-tools` built. A program that is in neither place is an error that says what to run: a test of a cluster is
never skipped in silence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VERSION = (ROOT / "tools" / "k8s" / "VERSION").read_text().strip()


class MissingTool(RuntimeError):
    """A program is not there; the message says how to get it."""


class CommandFailed(AssertionError):
    """A command ended with another code than 0; the message holds what it said."""


def tools_dir() -> Path:
    """The folder with kube-apiserver, etcd, kwok, helm and their friends (it may not exist yet)."""
    assets = os.environ.get("KUBE_ASSETS")
    if assets:
        return Path(assets).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "areal" / "k8s" / VERSION / "bin"


def tool(name: str) -> str:
    """The path of one program: from `tools_dir()`, else (kubectl, helm) from PATH."""
    path = tools_dir() / name
    if path.is_file():
        return str(path)
    elsewhere = shutil.which(name) if name in ("kubectl", "helm") else None
    if elsewhere:
        return elsewhere
    raise MissingTool(
        f"{name} is not in {tools_dir()}: run `make k8s-tools` (minutes, once), or set KUBE_ASSETS to its folder"
    )


def run(
    command: list[str],
    *,
    stdin: str | None = None,
    check: bool = True,
    timeout_s: float = 60.0,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end and returns what it said; raises CommandFailed for a code other than 0 if `check`."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=env, cwd=cwd)
    if check and done.returncode != 0:
        raise CommandFailed(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def kubectl(
    kubeconfig: Path,
    *arguments: str,
    namespace: str = "",
    stdin: str | None = None,
    check: bool = True,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """`kubectl` against one cluster, whatever the caller's own KUBECONFIG says."""
    command = [tool("kubectl"), f"--kubeconfig={kubeconfig}"]
    command += [f"--namespace={namespace}"] if namespace else []
    return run([*command, *arguments], stdin=stdin, check=check, timeout_s=timeout_s)


def helm(
    kubeconfig: Path | None, *arguments: str, namespace: str = "", check: bool = True, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """`helm` against one cluster, or without one (`None`) for what only renders."""
    command = [tool("helm"), *arguments]
    command += [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    command += [f"--namespace={namespace}"] if namespace else []
    return run(command, check=check, timeout_s=timeout_s)
