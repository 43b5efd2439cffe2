"""What keeps the node's writes off the machine: its own /run, /var/log and /var/lib, and sysctls of straw.

Runs inside the node's private mount namespace, so everything here ends with the node, however it ends.
"""

from __future__ import annotations

from pathlib import Path

from kube.harness.tools import run

SYSCTLS = (  # kubelet writes these, and they belong to the whole machine
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


def shield(directory: Path) -> None:
    """Puts the node's own folders and files over the machine's; what pods mount later may spread between them."""
    run(["mount", "--make-rprivate", "/"])
    for target in ("/run", "/var/log"):
        run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", target])
    Path("/run/lock").mkdir()
    upper, work = directory / "var-lib" / "upper", directory / "var-lib" / "work"
    upper.mkdir(parents=True)
    work.mkdir()
    layers = f"lowerdir=/var/lib,upperdir={upper},workdir={work}"
    run(["mount", "-t", "overlay", "-o", layers, "overlay", "/var/lib"])
    straw = directory / "sysctl"
    straw.mkdir()
    for name in SYSCTLS:
        real = Path("/proc/sys") / name
        if real.exists():
            copy = straw / name.replace("/", ".")
            copy.write_text(real.read_text())
            bind(copy, real)
    run(["mount", "--make-rshared", "/"])


def bind(source: Path, target: Path) -> None:
    """Shows `source` at `target` as well."""
    run(["mount", "--bind", str(source), str(target)])
