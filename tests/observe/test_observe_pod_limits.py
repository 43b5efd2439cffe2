"""A pod's memory and cores, from cgroups of both versions as hosts and containers see them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from areal.observe.pod_limits import pod_cores, pod_memory_bytes


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        ("0::/\n", "memory.max", "1000000\n"),
        ("0::/kubepods/pod1\n", "kubepods/pod1/memory.max", "1000000\n"),
        ("4:memory:/pod1\n0::/\n", "memory/pod1/memory.limit_in_bytes", "1000000\n"),
        ("4:cpu,memory:/gone\n", "memory/memory.limit_in_bytes", "1000000\n"),
    ],
)
def test_the_pods_memory_is_its_groups_limit(tmp_path: Path, membership: str, file: str, text: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert pod_memory_bytes(tmp_path, tmp_path / "membership") == 1_000_000


def test_without_a_limit_the_pod_has_the_machines_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "membership").write_text("0::/\n")
    assert pod_memory_bytes(tmp_path, tmp_path / "membership") > 1 << 28
    assert pod_memory_bytes(tmp_path / "none", tmp_path / "none") > 1 << 28


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/pod/me\n", {"pod/cpu.max": "50000 100000", "pod/me/cpu.max": "max 100000"}, 1),
        ("3:cpu,cpuacct:/pod\n", {"cpu/pod/cpu.cfs_quota_us": "90000", "cpu/pod/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_the_pods_cores_are_its_quota(tmp_path: Path, membership: str, files: dict[str, str], cores: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert pod_cores(tmp_path, tmp_path / "membership") == cores


def test_without_a_quota_it_has_every_core_that_it_may_run_on(tmp_path: Path) -> None:
    (tmp_path / "membership").write_text("3:cpu:/pod\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1")
    assert pod_cores(tmp_path, tmp_path / "membership") == len(os.sched_getaffinity(0))
