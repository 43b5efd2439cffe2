"""SGLang's CUDA kernels compile, link and load from the lock's wheels without a card; a second start compiles none."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "docker/sglang-lock.txt"
ROOM = 16 << 30  # bytes: the environment and its wheels
ARCHES = {"9.0": "sm_90a", "8.0": "sm_80"}


def environment() -> Path:
    """SGLang for CUDA as the lock pins it, made once a lock."""
    place = Path.home() / ".cache/areal" / f"sglang-cuda-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if (place / "whole").exists():
        return place
    if shutil.disk_usage(Path.home()).free < ROOM:
        pytest.skip(f"could not look: SGLang for CUDA needs {ROOM >> 30} GB of {Path.home()}")
    uv = ROOT / ".cache/uv/bin/uv"
    subprocess.run([uv, "venv", "-q", "--clear", place], check=True)
    subprocess.run([uv, "pip", "install", "-q", "--python", place / "bin/python", "-r", LOCK], check=True)
    (place / "whole").touch()
    return place


@pytest.mark.component
@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("arch", sorted(ARCHES))
def test_every_kernel_of_the_families_compiles_links_and_loads_and_the_second_start_compiles_nothing(arch, tmp_path):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "SGLANG", "LD_"))}
    ran = subprocess.run(
        [ROOT / "docker/kernels", environment(), tmp_path / "kernels", arch],
        env=clean, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert ran.returncode == 0, [line for line in lines if "error" in line] or ran.stderr[-2000:]
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert [line["kernel"] for line in first] == [line["kernel"] for line in second]
    assert {"activation", "rope 64", "rope 128", "clamp_position", "qknorm 128", "qknorm_rope 128"} <= {
        line["kernel"] for line in first
    }
    assert all(line["bytes"] > 10_000 and not line["there"] for line in first), first
    assert all(line["there"] and line["bytes"] == 0 for line in second), second
    modules = list((tmp_path / "kernels").glob("*/*/*/*/*.so"))
    assert len(modules) == len(first), "a kernel a module, where an image's are copied from"
