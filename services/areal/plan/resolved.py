"""A job with everything decided: paths, addresses, verifier. What every role is started with.

Owns the JSON file `resolved.json`. Holds no secret: tokens and passwords are files that it names.
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


class _Value(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Endpoints(_Value):
    """Addresses that roles dial, `host:port`. None: the job has no such role."""

    controller: str
    redis: str
    reward: str | None = None
    reward_custom: str | None = None


class ResolvedJob(_Value):
    """The job file plus what was found on this machine."""

    job: RLJob
    uid: str  # of this run; tags its Redis keys
    digest: str  # sha256 of the job
    run_dir: Path
    model_path: Path  # the start model's directory
    tokenizer_path: Path
    recipe_path: Path | None = None  # the copy in the run directory
    hooks_path: Path | None = None
    dataset: Dataset  # as in the job, with absolute paths
    verifier: Verifier | None = None  # None: the workflow scores by itself
    endpoints: Endpoints
    redis_users: Mapping[str, Path]  # login → password file
    ports: Mapping[str, Mapping[str, int]]  # row of the role table → what the port is for → port

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.run_dir)

    @property
    def name(self) -> str:
        return self.job.metadata.name

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
