"""A job with everything decided: paths, addresses, verifier. What every role is started with.

Owns the JSON file `resolved.json`, the same on one machine and in pods. Holds no secret: tokens, passwords and Redis
URLs are files that it names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from areal.errors import ConfigError
from areal.plan.layout import RunLayout
from areal.spec.job import RLJob
from areal.spec.sources import Dataset

Verifier = Literal["exact", "math", "code", "custom"]

REDIS_USERS = ("controller", "trainer", "worker")


def row_name(role: str, index: int) -> str:
    """A row of the role table: `worker-0`; roles that exist once have no index."""
    return f"{role}-{index}" if role in ("generation", "worker") else role


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Endpoints(_Value):
    """Addresses that roles dial, `host:port`. None: the job has no such role."""

    controller: str
    redis: str | None  # None: not the job's own; its URLs are in `redis_urls`
    reward: str | None = None
    reward_custom: str | None = None
    rendezvous: str | None = None  # where the ranks of a gang of several pods meet


class ResolvedJob(_Value):
    """The job file plus what was found on this machine, or is decided for a cluster."""

    job: RLJob
    uid: str  # of this run; tags its Redis keys
    digest: str  # sha256 of the job
    run_dir: Path
    model_path: Path  # the start model's directory
    tokenizer_path: Path
    recipe_source: Path | None = None  # the user's file
    recipe_path: Path | None = None  # its copy in the run directory, which roles import
    hooks_path: Path | None = None
    dataset: Dataset  # as in the job, with absolute paths
    verifier: Verifier | None = None  # None: the workflow scores by itself
    endpoints: Endpoints
    redis_users: Mapping[str, Path] = {}  # login → password file
    redis_urls: Mapping[str, Path] = {}  # login → file with the URL of a Redis that isn't the job's own
    ports: Mapping[str, Mapping[str, int]]  # row of the role table, or role → what the port is for → port
    bind: str = "127.0.0.1"  # the address that servers listen on
    access_dir: Path | None = None  # where the token lies; the run directory unless given
    namespace: str | None = None  # of a job that runs in pods
    patience_s: float = 60.0  # how long a role that starts waits for those that start beside it

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.run_dir)

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def in_pods(self) -> bool:
        """Whether each role runs in a pod of its own."""
        return self.namespace is not None

    @property
    def token_path(self) -> Path:
        """The file with the bearer token of all calls."""
        return self.layout.token if self.access_dir is None else self.access_dir / self.layout.token.name

    def ports_of(self, role: str, index: int) -> Mapping[str, int]:
        """What a role's process listens on, by purpose. Pods of one role all have the same ports."""
        return self.ports.get(f"{role}-{index}") or self.ports[role]

    @classmethod
    def load(cls, path: Path) -> ResolvedJob:
        """Read `resolved.json`, given itself or its run directory. Raises ConfigError when there is none."""
        file = RunLayout(path).resolved if path.is_dir() else path
        try:
            return cls.model_validate_json(file.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{file} can't be read: {error.strerror}", fix="Name a run directory that `areal run` made."
            ) from error
        except ValidationError as error:
            raise ConfigError(
                f"{file} is no resolved job of this version: {error}", fix="Start the run again in a new directory."
            ) from error

    def save(self) -> Path:
        """Write `resolved.json`: whole or not at all."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        part = self.layout.resolved.with_suffix(".json.part")
        with part.open("w", encoding="utf-8") as file:
            file.write(self.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.layout.resolved)
        return self.layout.resolved
