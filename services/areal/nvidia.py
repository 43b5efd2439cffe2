"""NVIDIA GPUs and driver as this process sees them: device files and /proc, without torch.

Owns the refusal to work on CPUs when GPUs were promised: a model that trains there by mistake looks like one that
hangs.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
OLDEST_DRIVER = 580  # major version that CUDA 13, which torch and SGLang are built with, asks for

_VERSION = re.compile(r"NVRM version:.*?\s(\d+)\.([\d.]+)\s")


@dataclass(frozen=True)
class Machine:
    """Where the driver shows itself; tests name other places."""

    dev: Path = Path("/dev")
    proc: Path = Path("/proc/driver/nvidia/version")
    environment: Mapping[str, str] | None = None  # ours unless given

    def devices(self) -> tuple[str, ...]:
        """GPUs that may be used, by index or UUID. What CUDA_VISIBLE_DEVICES names is believed where there are any."""
        visible = (os.environ if self.environment is None else self.environment).get(VISIBLE)
        present = len([*self.dev.glob("nvidia[0-9]*")])
        if visible is None:
            return tuple(str(index) for index in range(present))
        return tuple(name.strip() for name in visible.split(",") if name.strip()) if present else ()

    def driver(self) -> str | None:
        """The driver's version, like 580.65.06; None without a driver."""
        try:
            found = _VERSION.search(self.proc.read_text())
        except OSError:
            return None
        return f"{found[1]}.{found[2]}" if found else None


def require(count: int, who: str, machine: Machine | None = None) -> None:
    """Raise ConfigError when fewer than `count` GPUs are visible, or their driver is too old for CUDA 13."""
    where = Machine() if machine is None else machine
    if count == 0:
        return
    seen, driver = where.devices(), where.driver()
    if len(seen) < count:
        raise missing(count, len(seen), who, driver)
    if driver is not None and int(driver.partition(".")[0]) < OLDEST_DRIVER:
        raise ConfigError(
            f"{who}: driver {driver} is too old for CUDA 13, which needs {OLDEST_DRIVER} or newer",
            fix="Update the NVIDIA driver of the node.",
        )


def missing(count: int, seen: int, who: str, driver: str | None, cuda: str | None = None) -> ConfigError:
    """The error of a process that was promised GPUs.

    Args:
        cuda: the version that torch is built with, where torch is what doesn't see them.
    """
    built = f", torch is built with CUDA {cuda}" if cuda else ""
    return ConfigError(
        f"{who} was promised {_gpus(count)} and sees {seen or 'none'}: driver {driver or 'absent'}{built}",
        fix=f"Run it where {_gpus(count)} and a driver of {OLDEST_DRIVER} or newer are visible (on a cluster: the "
        "NVIDIA device plugin and the runtime class nvidia), or set gpus to 0 for CPUs.",
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''}"
