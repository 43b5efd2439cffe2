"""The table of roles: one frozen row for each, from which everything else that differs by role is made.

Owns what is fixed about a role: its program, ports, life, who may call it, its secrets, its mounts and its pods. The
table of a run on one machine, the launcher's command, StatefulSets, Services, NetworkPolicies, Secrets' items and the
page of roles read it and know no role by name, unless they do something for that role alone. A new role is a row of
roles.yaml, a name in `cluster_names.Role` and the module that its `entry` names. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from areal.plan.callers import Caller, Outsider
from areal.plan.cluster_names import (
    ACL_KEY,
    DIGESTS_KEY,
    JOB_DIR,
    LAUNCHER_PORT,
    PORT_NUMBERS,
    REDIS_CONF_KEY,
    RESOLVED_KEY,
    RUN_DIR,
    SESSION_KEY,
    Role,
    password_key,
    token_key,
)
from areal.plan.layout import RunLayout
from areal.spec.code_tiers import POD_LIMIT, POD_REQUEST
from areal.spec.job import JobSpec
from areal.yaml_file.table import read_table, tuple_fields

Count = Callable[[JobSpec, str | None], int]
"""How many pods of a role a job has, told its spec and its verifier; 0 when it goes without the role."""


class RoleProgram(StrEnum):
    """What a role's container runs."""

    AREAL_ROLE = "areal-role"  # the function that the row's `entry` names
    TORCHRUN = "torchrun"  # the ranks of the trainer
    REDIS = "redis-server"
    RECEIVER = "receiver"  # `areal submit` writes its command itself


class SourceKind(StrEnum):
    """A user's file that pods read where the user put it."""

    MODEL = "model"  # with its tokenizer
    REWARD_MODEL = "reward model"  # of the verifier `model`
    HOOKS = "hooks"
    RECIPE = "recipe"
    DATASET = "dataset"


@dataclass(frozen=True)
class RunPart:
    """A part of the run directory that a role sees."""

    path: Path
    writable: bool = False
    with_recipe: bool = False  # exists only when the job has a recipe
    with_hub_model: bool = False  # exists only when the model was downloaded
    with_token_audit: bool = False  # is mounted only when `recording.tokenAudit` asks for it


@dataclass(frozen=True)
class PodNeeds:
    """What one pod takes unless a runtime or a job says otherwise: amounts for a small job on CPUs."""

    requests: Mapping[str, str]
    grace_s: int  # from SIGTERM to SIGKILL: what draining takes, and a margin
    limits: Mapping[str, str] = field(default_factory=dict)
    scratch: Mapping[str, str] = field(default_factory=dict)  # the emptyDir at /tmp
    toolchains: Mapping[str, str] = field(default_factory=dict)  # the emptyDir at /var/tmp, where there is one


@dataclass(frozen=True)
class RoleSpec:
    """All that is fixed about one role. Times in seconds."""

    role: Role
    what: str  # for people
    workload: Literal["StatefulSet", "Deployment", "Job", "Pod"]
    template_key: str  # its field of a runtime's `roles`, and of `podTemplate` unless `patch_key` says otherwise
    program: RoleProgram = RoleProgram.AREAL_ROLE
    entry: str = ""  # `module:function` of AREAL_ROLE
    count: Count = lambda spec, verifier: 1
    rl_only: bool = False  # a training on fixed rows generates and scores nothing, and goes without the role
    indexed: bool = False  # rows and pods are `<role>-<index>`
    gang: bool = False  # its pods are one distributed program: one row on one machine, restarted together in epochs
    ports: tuple[str, ...] = ("grpc", "metrics")
    start_s: float = 60.0  # from start to ready
    drain_s: float = 10.0  # from SIGTERM to SIGKILL
    pod_drain_s: float | None = None  # in a pod, where that differs
    depends_on: tuple[Role, ...] = ()  # on one machine, these are ready before it starts
    called_by: tuple[Caller, ...] = ()  # beside the operator and monitoring, which call every launcher and exporter
    sealed: bool = False  # opens no connection at all, not even to DNS
    secret: tuple[str, ...] = (DIGESTS_KEY,)  # keys of the job's Secret, beside its token and Redis password
    redis_login: str | None = None  # as whom it talks to Redis; also the key of an external Redis' Secret
    run_parts: tuple[RunPart, ...] = ()
    reads: tuple[SourceKind, ...] = ()
    needs: PodNeeds | None = None  # None: the operator makes no pod of it
    headless: bool = False  # its pods are dialled one by one
    front: tuple[str, ...] = ()  # ports of a headless role that are dialled as a whole, at an address of their own
    held: tuple[str, ...] = ()  # ports on which its launcher listens, so that a restart refuses nobody
    recreate: bool = False  # an update ends the old pod before it starts the new one
    reads_store: bool = False  # and writes there: it sees the Secret of the job's object store
    holds_model: bool = False  # only the operator replaces its pods; they get shared memory
    max_unavailable: int | str | None = None  # of its disruption budget; None: it has none
    evict_unready: bool = False  # a pod that isn't ready may be evicted whatever the budget says
    beside: bool = False  # the job neither waits for it nor fails by it; it has no launcher and no secret
    asks_api_server: bool = False  # who a visitor is, with the visitor's own token: it has none
    patch_key: str = ""  # its field of `podTemplate` where it has that of another role, which no job has beside it

    @property
    def runs_on(self) -> bool:
        """Whether it runs as long as the job, not to an end of its own."""
        return self.workload in ("StatefulSet", "Deployment")

    @property
    def readiness(self) -> Literal["grpc", "tcp"]:
        """Readiness probe of its process, on its port `grpc` or `main`."""
        return "tcp" if self.program is RoleProgram.REDIS or self.beside else "grpc"

    @property
    def supervised(self) -> bool:
        """Whether a launcher supervises it in its pods: not Redis, not what runs beside the job, and not tools, which
        end by themselves."""
        return self.runs_on and self.program is not RoleProgram.REDIS and not self.beside

    @property
    def pod_ports(self) -> dict[str, int]:
        """Ports of its pods beside the launcher's, by purpose; the same words as in a resolved job."""
        return {name: PORT_NUMBERS[name] for name in self.ports}

    @property
    def secret_keys(self) -> tuple[str, ...]:
        """Keys of the job's Secret that its pods see."""
        own = (token_key(self.role),) if self.calls_others else ()
        return own + self.secret + ((password_key(self.redis_login),) if self.redis_login else ())

    @property
    def calls_others(self) -> bool:
        """Whether it calls methods of another role, and so has a token."""
        return any(
            caller.who == self.role and caller.methods for row in ROLE_SPECS.values() for caller in row.called_by
        )

    @property
    def command(self) -> list[str]:
        """Command of the first process of its container."""
        job = ["--job", str(JOB_DIR / RESOLVED_KEY)]
        if self.program is RoleProgram.REDIS:
            return ["redis-server", str(JOB_DIR / REDIS_CONF_KEY)]
        if self.supervised:
            return ["areal-launch", *job, "--role", f"{self.role}", "--port", str(LAUNCHER_PORT)]
        return ["areal-role", f"{self.role}", *job]

    def row(self, index: int) -> str:
        """The name of its row on one machine, and of its process: `worker-0`; what exists once has no index."""
        return f"{self.role}-{index}" if self.indexed and not self.gang else f"{self.role}"

    def member(self, index: int) -> str:
        """The name of its row in a pod: there each member of a gang has a row of its own."""
        return f"{self.role}-{index}" if self.indexed else f"{self.role}"


_COUNTS: Mapping[Role, Count] = {  # 1 unless said here
    Role.REDIS: lambda spec, verifier: 0 if spec.replay.backend == "External" else 1,
    Role.REWARD: lambda spec, verifier: 0 if verifier in (None, "custom", "model") else spec.reward.replicas,
    Role.REWARD_CUSTOM: lambda spec, verifier: spec.reward.replicas if verifier == "custom" else 0,
    Role.REWARD_MODEL: lambda spec, verifier: spec.reward.replicas if verifier == "model" else 0,
    Role.BOXES: lambda spec, verifier: int(spec.rollout.boxes.max_concurrent > 0),
    Role.GENERATION: lambda spec, verifier: spec.generation.replicas,
    Role.WEIGHTS: lambda spec, verifier: int(spec.servers_fetch),
    Role.ARCHIVE: lambda spec, verifier: int(spec.storage.store is not None),
    Role.GATEWAY: lambda spec, verifier: spec.rollout.gateway.replicas,
    Role.WORKER: lambda spec, verifier: spec.rollout.workers,
    Role.TRAINER: lambda spec, verifier: spec.trainer.replicas,
    Role.VIEW: lambda spec, verifier: 1 if spec.observability.view else 0,
}
_KEYS = {"acl": ACL_KEY, "digests": DIGESTS_KEY, "session": SESSION_KEY}
_BOX_MEMORY = {"requests": {"memory": POD_REQUEST}, "limits": {"memory": POD_LIMIT}}


def _row(role: Role, told: Mapping[str, Any]) -> RoleSpec:
    """A role's row of roles.yaml, with its values' own types."""
    layout, fields = RunLayout(Path(RUN_DIR)), tuple_fields(told)
    made: dict[str, Callable[[Any], Any]] = {
        "program": RoleProgram,
        "depends_on": lambda names: tuple(map(Role, names)),
        "called_by": lambda callers: tuple(
            Caller(**{**one, "who": _caller(one["who"])}) for one in map(tuple_fields, callers)
        ),
        "secret": lambda keys: tuple(_KEYS[key] for key in keys),
        "run_parts": lambda parts: tuple(RunPart(**{**part, "path": getattr(layout, part["path"])}) for part in parts),
        "reads": lambda kinds: tuple(map(SourceKind, kinds)),
        "needs": lambda needs: PodNeeds(**needs),
    }
    if role is Role.BOXES:
        needs = fields["needs"]
        fields["needs"] = needs | {name: needs[name] | memory for name, memory in _BOX_MEMORY.items()}
    typed = {name: made[name](value) if name in made else value for name, value in fields.items()}
    return RoleSpec(role, count=_COUNTS.get(role, RoleSpec.count), **typed)


def _caller(name: str) -> Role | Outsider:
    return Outsider(name) if name in [*Outsider] else Role(name)


ROLE_SPECS = {
    Role(name): _row(Role(name), told) for name, told in read_table("areal.plan", "roles.yaml")["roles"].items()
}
"""Every role, in the order in which a job needs them."""


def spec_of(role: Role) -> RoleSpec:
    """The row of a role."""
    return ROLE_SPECS[role]


def long_running() -> tuple[Role, ...]:
    """Roles that run as long as the job, and without which it does not."""
    return tuple(role for role, row in ROLE_SPECS.items() if row.runs_on and not row.beside)


def beside(spec: JobSpec) -> tuple[Role, ...]:
    """The roles of a job that run beside it."""
    return tuple(role for role, row in ROLE_SPECS.items() if row.beside and row.count(spec, None))


def batch_jobs() -> tuple[Role, ...]:
    """Roles that run to an end, before and after all others."""
    return tuple(role for role, row in ROLE_SPECS.items() if row.workload == "Job")


def redis_logins() -> dict[Role, str]:
    """Roles that talk to Redis, and as whom."""
    return {role: row.redis_login for role, row in ROLE_SPECS.items() if row.redis_login is not None}


def counts(spec: JobSpec, verifier: str | None) -> dict[Role, int]:
    """The long-running roles of a job and how many pods each has, in the order in which they are needed."""
    roles = [role for role in long_running() if spec.is_rl or not ROLE_SPECS[role].rl_only]
    pods = {role: ROLE_SPECS[role].count(spec, verifier) for role in roles}
    return {role: count for role, count in pods.items() if count}


def entries() -> dict[str, RoleSpec]:
    """The rows that `areal-role` can start, by role."""
    return {f"{role}": row for role, row in ROLE_SPECS.items() if row.entry}
