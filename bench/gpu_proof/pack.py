"""`python -m gpu_proof.pack OUT`: one archive that proves a GPU on a machine without network.

It holds this project's sources, the packages that they need beside torch, and a Redis server. The machine needs Python
3.11 or newer and torch. Extension modules bear their Python's version in their names, so one folder serves several.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12")
MOST = 64 << 20  # bytes of the archive
SOURCES = ("bench/gpu_proof", "services", "trainer", "examples", "requirements", "docker/kernels", "docker/cuda_home",
           "docker/sglang_kernels", "pyproject.toml", "constraints.txt", "LICENSE")  # fmt: skip
ROLES = ("engine", "trainer")  # extras of a run with the embedded engine
LEFT_OUT = ("__pycache__", "tests", "_cffi.*")  # the last: zstandard has the same once more
WITHOUT = ("torch", "numpy", "triton", "setuptools", "hf-xet", "pillow", "tensorboard-data-server")
START = """#!/bin/sh
# ./prove [--seconds 1500] [--out FILE] — tries every claim on this machine's GPU; PYTHON names the one that has torch
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/bench:$here/services:$here/trainer:$here/site${PYTHONPATH:+:$PYTHONPATH}"
export PATH="$PATH:$here/bin"
exec "${PYTHON:-python3}" -m gpu_proof "$@"
"""
REDIS = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/loader" --library-path "$here/lib" "$here/redis" "$@"
"""


def sources(place: Path) -> None:
    """The files that git knows below SOURCES."""
    listed = subprocess.run(["git", "ls-files", "-z", *SOURCES], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)


def wanted() -> list[str]:
    """What this project says that these roles need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(package for role in ROLES for package in extras[role])]


def packages(site: Path, uv: str) -> None:
    """The packages of our pins for each Python, over each other in one folder."""
    with tempfile.TemporaryDirectory() as home:
        absent = Path(home, "absent.txt")
        absent.write_text("".join(f'{name}; python_version < "3"\n' for name in WITHOUT))
        for version in PYTHONS:
            target = Path(home, version)
            subprocess.run(
                [uv, "pip", "install", "-q", "--target", target, "--python-version", version, "--python-platform",
                 "x86_64-manylinux_2_34", "--only-binary", ":all:", "--overrides", absent,
                 "-c", ROOT / "constraints.txt", *wanted()],
                check=True, cwd=ROOT,
            )  # fmt: skip
            shutil.copytree(target, site, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for module in site.rglob("*.so"):
        if not module.parent.name.endswith(".libs"):  # rewritten by the wheel's builder: strip would break them
            subprocess.run(["strip", "--strip-unneeded", module], check=True)


def redis(place: Path) -> None:
    """This machine's Redis server with the libraries that it is linked to, and their loader."""
    server = shutil.which("redis-server")
    if server is None:
        raise SystemExit("no redis-server here to pack: make runtime installs one")
    listed = subprocess.run(["ldd", server], check=True, capture_output=True, text=True).stdout
    (place / "lib").mkdir(parents=True)
    shutil.copy2(Path(server).resolve(), place / "redis")
    for path in re.findall(r"(/\S+) \(0x", listed):
        target = place / "loader" if "ld-linux" in path else place / "lib" / Path(path).name
        shutil.copy2(Path(path).resolve(), target)
    _program(place / "redis-server", REDIS)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def pack(out: Path, uv: str) -> int:
    """Write the archive; its size in bytes. Raises SystemExit where it is too large to carry."""
    with tempfile.TemporaryDirectory() as home:
        place = Path(home, "gpu-proof")
        place.mkdir()
        sources(place)
        packages(place / "site", uv)
        redis(place / "bin")
        _program(place / "prove", START)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w:gz", compresslevel=6) as archive:
            archive.add(place, "gpu-proof")
    size = out.stat().st_size
    if size > MOST:
        raise SystemExit(f"{out} has {size / 2**20:.0f} MiB, more than the {MOST >> 20} that are carried")
    return size


def main(arguments: Sequence[str]) -> None:
    out = Path(arguments[0])
    uv = shutil.which("uv") or str(ROOT / ".cache/uv/bin/uv")
    print(f"{out}: {pack(out, uv) / 2**20:.1f} MiB; there: tar xf {out.name} && gpu-proof/prove --seconds 1500")


if __name__ == "__main__":
    main(sys.argv[1:])
