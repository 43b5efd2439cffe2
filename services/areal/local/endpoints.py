"""`endpoints.json`: where the roles of a running job listen, for `areal status`. Mode 0600, gone when the run ends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from areal.errors import ConfigError
from areal.plan import RoleRow

_SERVES_OURS = ("controller", "worker", "generation", "reward", "reward-custom", "trainer")  # not Redis


@dataclass(frozen=True)
class LiveRun:
    """A run that goes on. `roles` are all rows, `addresses` those that serve gRPC, `supervisor` is the Launcher's."""

    name: str
    pid: int
    supervisor: str
    controller: str
    roles: list[str]
    addresses: Mapping[str, str]
    max_steps: int
    max_staleness: int


def addresses_of(rows: list[RoleRow], host: str = "127.0.0.1") -> dict[str, str]:
    """The gRPC address of each row that has one."""
    return {row.name: f"{host}:{row.ports['grpc']}" for row in rows if row.role in _SERVES_OURS and "grpc" in row.ports}


def write(path: Path, run: LiveRun) -> None:
    """Replace the file as a whole; nobody else may read it at any moment."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(run), file, indent=1)
    part.replace(path)


def read(path: Path) -> LiveRun:
    """The run that goes on there; raises ConfigError when none does."""
    try:
        return LiveRun(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(f"no run goes on in {path.parent}", fix="start it with `areal run`") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", fix="start the run again") from error
