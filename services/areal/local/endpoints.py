"""`endpoints.json`: where the roles of a running job listen, for `areal status`. Mode 0600, gone when the run ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from areal.errors import ConfigError
from areal.files import write_atomically
from areal.plan import RoleRow


@dataclass(frozen=True)
class LiveRun:
    """A run that goes on. `roles` are all rows, `addresses` those that serve gRPC, `supervisor` is the Launcher's,
    `base_urls` where agents call its gateways."""

    name: str
    pid: int
    supervisor: str
    controller: str
    roles: list[str]
    addresses: Mapping[str, str]
    max_steps: int
    max_staleness: int
    base_urls: Sequence[str] = ()


def addresses_of(rows: list[RoleRow], host: str = "127.0.0.1") -> dict[str, str]:
    """The gRPC address of each row that has one."""
    return {row.name: f"{host}:{row.ports['grpc']}" for row in rows if "grpc" in row.ports}


def write(path: Path, run: LiveRun) -> None:
    """Replace the file as a whole; nobody else may read it at any moment."""
    write_atomically(path, json.dumps(asdict(run), indent=1).encode(), private=True, durable=False)


def read(path: Path) -> LiveRun:
    """The run that goes on there; raises ConfigError when none does."""
    try:
        return LiveRun(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(f"no run goes on in {path.parent}", fix="start it with `areal run`") from None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} can't be read: {error}", fix="start the run again") from error
