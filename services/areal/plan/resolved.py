"""The resolved job: a job with its paths, addresses and verifier decided; every role starts with it.

Owns the JSON file `resolved.json`, the same on one machine and in pods, and its version: a role reads files of its own
major version, and ignores the fields that a newer minor version has added. Holds no secret: tokens, passwords and Redis
URLs are files that it names.
"""

import functools
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from areal.errors import ConfigError
from areal.files import write_atomically
from areal.plan.cluster_names import STORE_DIR
from areal.plan.layout import RunLayout
from areal.spec.job import JobSpec, RLJob
from areal.spec.migration import migrated_job
from areal.spec.model_families import route_bytes
from areal.spec.sources import Dataset

Verifier = Literal["exact", "math", "code", "model", "custom"]


VERSION = "2.0"
"""Of `resolved.json`: the minor grows with each field that is added, the major when older readers would misread it."""

_MIGRATED = 1  # the major version that had the job fields of release 0.1
_UNVERSIONED = "1.0"  # files without a version are of this one
_GONE = tuple(("job", "spec", "trainer", "mesh", name) for name in ("dp", "frozen"))  # that it had, and nothing needs


class _ResolvedValue(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Endpoints(_ResolvedValue):
    """Addresses that roles dial, `host:port`. None: the job has no such role."""

    controller: str  # empty: the job has none
    redis: str | None  # None: not the job's own; its URLs are in `redis_urls`, or it has none
    reward: str | None = None
    reward_custom: str | None = None
    boxes: str | None = None
    weights: str | None = None  # where servers read versions, when they don't mount the run's volume
    trainer: str | None = None  # its first rank's gRPC; servers dial it where weights come by a process group
    gateways: list[str] = []  # that workers dial, one by one
    gateway_urls: list[str] = []  # where agents call them, `http://host:port`
    rendezvous: str | None = None  # where the ranks of a gang of several pods meet


class ResolvedJob(_ResolvedValue):
    """The job file plus what was found on this machine, or is decided for a cluster."""

    version: str = VERSION  # `major.minor` of this format
    job: RLJob
    uid: str  # of this run; tags its Redis keys
    digest: str  # sha256 of the job
    run_dir: Path
    model_path: Path  # the start model's directory
    tokenizer_path: Path
    recipe_source: Path | None = None  # the user's file
    recipe_path: Path | None = None  # its copy in the run directory, which roles import
    hooks_path: Path | None = None
    reward_model_path: Path | None = None  # the model of the verifier `model`
    teacher_path: Path | None = None  # the frozen model that is learned from
    dataset: Dataset  # as in the job, with absolute paths
    verifier: Verifier | None = None  # None: the workflow scores by itself
    endpoints: Endpoints
    redis_users: Mapping[str, Path] = {}  # login → password file
    redis_urls: Mapping[str, Path] = {}  # login → file with the URL of a Redis that isn't the job's own
    ports: Mapping[str, Mapping[str, int]]  # row of the role table, or role → what the port is for → port
    bind: str = "127.0.0.1"  # the address that servers listen on
    access_dir: Path | None = None  # where tokens lie; in the run directory unless given
    namespace: str | None = None  # of a job that runs in pods
    patience_s: float = 60.0  # how long a role that starts waits for those that start beside it

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.run_dir)

    @property
    def spec(self) -> JobSpec:
        """Spec of the job, with every default in place."""
        return self.job.spec

    @property
    def route_bytes(self) -> int | None:
        """Bytes of routes that a sampled token brings: 0 without experts, None where the model isn't here to say so."""
        file = self.model_path / "config.json"
        if not self.spec.replays_routes:
            return 0
        return route_bytes(json.loads(file.read_bytes())) if file.is_file() else None

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def in_pods(self) -> bool:
        """Whether roles run in pods: each in its own, or servers in the trainer's."""
        return self.namespace is not None

    @property
    def in_one_pod(self) -> bool:
        """Whether the servers are processes of the trainer's pod, whose devices they have by turns."""
        return self.in_pods and self.spec.shared_cards

    @property
    def store_address(self) -> str:
        """Address of this run in the job's object store: below namespace, name and uid: no two runs meet."""
        run = f"{self.name}-{self.uid.removeprefix(f'{self.name}-')[:8]}"
        return f"{str(self.spec.storage.store).rstrip('/')}/{self.namespace or 'local'}/{run}"

    @property
    def store_credentials(self) -> Path | None:
        """The directory with the options of the store; None where the environment has them."""
        return Path(STORE_DIR) if self.in_pods and self.spec.storage.store_secret is not None else None

    @property
    def cards(self) -> Path:
        """The directory of the lock of shared devices. In a pod on its own disk: a volume's may be across a network."""
        return Path(tempfile.gettempdir()) / self.layout.cards.name if self.in_pods else self.layout.cards

    @property
    def access(self) -> Path:
        """The directory of tokens and digests; a pod sees its role's alone."""
        return self.access_dir or self.layout.access

    @property
    def token_path(self) -> Path:
        """The one token of all calls, where an older version made the job."""
        return self.layout.token if self.access_dir is None else self.access_dir / self.layout.token.name

    def ports_of(self, role: str, index: int) -> Mapping[str, int]:
        """Ports of a role's process, by purpose. Pods of one role all have the same ports."""
        return self.ports.get(f"{role}-{index}") or self.ports[role]

    @classmethod
    def load(cls, path: Path) -> "ResolvedJob":
        """Read `resolved.json`, given itself or its run directory. Raises ConfigError when there is none."""
        file = RunLayout(path).resolved if path.is_dir() else path
        try:
            text = file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{file} can't be read: {error.strerror}", fix="Name a run directory that `areal run` made."
            ) from error
        return cls.parse(text, str(file))

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> "ResolvedJob":
        """The job in a file's text; `where` names the file. Raises ConfigError for what this version can't read."""
        fix = "Start the run again in a new directory."
        try:
            return _read(json.loads(text))
        except (ValueError, RecursionError) as error:  # a ValidationError is a ValueError
            raise ConfigError(f"{where} is no resolved job of this version: {error}", fix=fix) from error

    def save(self) -> Path:
        """Write `resolved.json`: whole or not at all."""
        write_atomically(self.layout.resolved, self.model_dump_json(indent=1).encode())
        return self.layout.resolved


def _read(values: Any) -> ResolvedJob:
    """The job, without the fields that only a newer or an older minor version knows. Raises ValueError."""
    if not isinstance(values, dict):
        raise ValueError("it is no mapping")
    written = _numbers(values.get("version", _UNVERSIONED))
    ours = _numbers(VERSION)
    if written[0] not in (_MIGRATED, ours[0]):
        raise ValueError(f"it has version {values.get('version')}, and this reads {ours[0]}.x")
    if written[0] == _MIGRATED:
        values = functools.reduce(_without, _GONE, values)
        values = {**values, "job": migrated_job(values.get("job") or {})}
    try:
        return ResolvedJob.model_validate_json(json.dumps(values))
    except ValidationError as error:
        unknown = [problem["loc"] for problem in error.errors() if problem["type"] == "extra_forbidden"]
        if written <= ours or not unknown:
            raise
        return _read(functools.reduce(_without, unknown, values))


def _numbers(version: Any) -> tuple[int, int]:
    major, _, minor = str(version).partition(".")
    return int(major), int(minor)


def _without(values: Any, place: Sequence[int | str]) -> Any:
    """`values` without what is at `place`. Names of a union's members are in the place and not in the values."""
    if not place:
        return values
    head, rest = place[0], place[1:]
    if isinstance(values, dict) and head in values:
        changed = {head: _without(values[head], rest)} if rest else {}
        return {key: value for key, value in values.items() if key != head} | changed
    if isinstance(values, list) and isinstance(head, int) and head < len(values):
        return [_without(value, rest) if index == head else value for index, value in enumerate(values)]
    return _without(values, rest)
