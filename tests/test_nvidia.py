"""GPUs that were promised are looked for before anything starts."""

from __future__ import annotations

import pytest
from areal.errors import ConfigError, ExitCode
from areal.nvidia import Machine, require

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Release Build\nGCC version: 12\n"


def machine(tmp_path, gpus: int, driver: str | None, **environment: str) -> Machine:
    for index in range(gpus):
        (tmp_path / f"nvidia{index}").touch()
    (tmp_path / "nvidiactl").touch()
    if driver:
        (tmp_path / "version").write_text(DRIVER.format(driver))
    return Machine(tmp_path, tmp_path / "version", environment)


def test_a_cpu_job_asks_for_nothing(tmp_path):
    assert require(0, "the trainer", machine(tmp_path, 0, None)) is None


def test_none_visible_is_the_job_s_fault_and_names_the_driver(tmp_path):
    with pytest.raises(ConfigError, match="promised 8 GPUs and sees none: driver absent") as caught:
        require(8, "the trainer", machine(tmp_path, 0, None))
    assert caught.value.exit_code is ExitCode.CONFIG


def test_fewer_than_promised_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"promised 2 GPUs and sees 1: driver 580\.65\.06"):
        require(2, "a server", machine(tmp_path, 1, "580.65.06"))


def test_an_old_driver_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"driver 550\.54 is too old for CUDA 13"):
        require(1, "a server", machine(tmp_path, 1, "550.54"))


@pytest.mark.parametrize(("visible", "seen"), [("", ()), ("3", ("3",)), ("GPU-a, GPU-b", ("GPU-a", "GPU-b"))])
def test_an_outer_choice_of_devices_is_kept(tmp_path, visible, seen):
    assert machine(tmp_path, 4, "580.1", CUDA_VISIBLE_DEVICES=visible).devices() == seen
    assert machine(tmp_path, 4, "580.1").devices() == ("0", "1", "2", "3")
