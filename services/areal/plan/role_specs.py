"""The table of roles: one frozen row for each, from which everything else that differs by role is made.

Owns what is fixed about a role: its program, ports, life, who may call it, its secrets, its mounts and its pods. The
table of a run on one machine, the launcher's command, StatefulSets, Services, NetworkPolicies, Secrets' items and the
page of roles read it and know no role by name, unless they do something for that role alone. A new role is a row here,
a name in `cluster_names.Role` and the module that its `entry` names. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from areal.plan.callers import (
    BOXES,
    CONTROLLER_CALLERS,
    FILES,
    GATEWAY_CALLERS,
    GENERATION_CALLERS,
    REDIS_CALLERS,
    SCORE,
    TRAINER_CALLERS,
    Caller,
    Outsider,
)
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


_LAYOUT = RunLayout(Path(RUN_DIR))
_WHOLE_RUN = (RunPart(_LAYOUT.root, writable=True),)
_RECIPE = RunPart(_LAYOUT.recipe, with_recipe=True)
_HUB_MODEL = RunPart(_LAYOUT.start_model, with_hub_model=True)
_HUB_REWARD_MODEL = RunPart(_LAYOUT.reward_model, with_hub_model=True)


def _needs(cpu: str, memory: str, *, limit: str, scratch: str, grace_s: int) -> PodNeeds:
    return PodNeeds({"cpu": cpu, "memory": memory}, grace_s, {"memory": limit}, {"sizeLimit": scratch})


_SANDBOX = PodNeeds(
    requests={"cpu": "100m", "memory": "256Mi"},
    limits={"memory": "1Gi", "ephemeral-storage": "1Gi"},
    scratch={"medium": "Memory", "sizeLimit": "256Mi"},  # gone with the pod, and nothing of it reaches a disk
    grace_s=45,
)
_BOX_LIMITS = {**_SANDBOX.limits, "memory": POD_LIMIT}
_TOOL = PodNeeds(requests={"cpu": "100m", "memory": "256Mi"}, grace_s=30)

_REWARD = RoleSpec(
    role=Role.REWARD,
    what="scores answers with a built-in verifier",
    entry="areal.reward.main:run",
    workload="Deployment",
    template_key="reward",
    rl_only=True,
    count=lambda spec, verifier: 0 if verifier in (None, "custom", "model") else spec.reward.replicas,
    called_by=(Caller(Role.WORKER, "grpc", "scores answers", methods=SCORE),),
    sealed=True,
    needs=_SANDBOX,
)

_ROWS = (  # in the order in which a job's roles are needed
    RoleSpec(
        role=Role.REDIS,
        what="the ledger's store: samples that wait for training",
        program=RoleProgram.REDIS,
        workload="StatefulSet",
        template_key="redis",
        rl_only=True,
        count=lambda spec, verifier: 0 if spec.replay.backend == "External" else 1,
        ports=("main",),
        start_s=30,
        called_by=REDIS_CALLERS,
        sealed=True,
        secret=(ACL_KEY,),
        needs=PodNeeds(requests={"cpu": "100m"}, scratch={"sizeLimit": "64Mi"}, grace_s=60),
    ),
    _REWARD,
    replace(
        _REWARD,
        role=Role.REWARD_CUSTOM,
        what="scores answers with the recipe's function",
        template_key="rewardCustom",
        count=lambda spec, verifier: spec.reward.replicas if verifier == "custom" else 0,
        called_by=(Caller(Role.WORKER, "grpc", "scores answers with the recipe's function", methods=SCORE),),
        sealed=False,
        run_parts=(_RECIPE,),
    ),
    replace(
        _REWARD,
        role=Role.REWARD_MODEL,
        what="scores answers with a reward model",
        template_key="rewardModel",
        patch_key="reward",
        count=lambda spec, verifier: spec.reward.replicas if verifier == "model" else 0,
        start_s=600,  # a reward model is read from a slow disk
        called_by=(Caller(Role.WORKER, "grpc", "scores answers with a reward model", methods=SCORE),),
        run_parts=(_HUB_REWARD_MODEL,),
        reads=(SourceKind.REWARD_MODEL,),
        needs=PodNeeds(requests={"cpu": "250m", "memory": "1Gi"}, grace_s=45),  # only its owner knows the model's size
    ),
    replace(
        _REWARD,
        role=Role.BOXES,
        what="boxes: sandboxes that live over the commands of an episode",
        entry="areal_judge.boxes.main:run",
        template_key="reward",  # the platform lets the same sandbox work in both
        count=lambda spec, verifier: int(spec.rollout.boxes.max_concurrent > 0),
        called_by=(Caller(Role.WORKER, "grpc", "runs commands in the boxes of its episodes", methods=BOXES),),
        needs=replace(_SANDBOX, requests={"cpu": "250m", "memory": POD_REQUEST}, limits=_BOX_LIMITS),
        recreate=True,  # a box is in one pod: a second one beside it would know none of them
    ),
    RoleSpec(
        role=Role.CONTROLLER,
        what="admits prompt groups, leases them to workers, closes them; keeps the journal",
        entry="areal.rollout.controller.main:run",
        workload="Deployment",
        template_key="controller",
        rl_only=True,
        depends_on=(Role.REDIS,),
        called_by=CONTROLLER_CALLERS,
        redis_login="controller",
        run_parts=_WHOLE_RUN,  # journal, fences, evaluations; reads the dataset
        needs=_needs("100m", "256Mi", limit="2Gi", scratch="256Mi", grace_s=45),
        recreate=True,  # a second one beside it would be fenced off, but why start it
    ),
    RoleSpec(
        role=Role.GENERATION,
        what="serves the newest weights: an agent beside an engine",
        entry="areal.generation.main:run",
        workload="StatefulSet",
        template_key="generation",
        rl_only=True,
        count=lambda spec, verifier: spec.generation.replicas,
        indexed=True,
        ports=("grpc", "metrics", "engine"),
        start_s=600,  # large models load for minutes; it dials the controller when that is there
        drain_s=15,
        called_by=GENERATION_CALLERS,
        run_parts=(_HUB_MODEL, RunPart(_LAYOUT.weights), RunPart(_LAYOUT.tokens, writable=True, with_token_audit=True)),
        reads=(SourceKind.MODEL,),
        needs=PodNeeds(requests={"cpu": "250m", "memory": "1Gi"}, grace_s=150),  # only its owner knows the model's size
        headless=True,
        holds_model=True,
        max_unavailable="25%",
        evict_unready=True,  # a server that isn't ready serves nobody: it may go whatever the others do
    ),
    RoleSpec(
        role=Role.WEIGHTS,
        what="hands the start model and versions to servers that don't mount the volume",
        entry="areal.generation.volume:run",
        workload="Deployment",
        template_key="controller",  # of the same image
        rl_only=True,
        count=lambda spec, verifier: int(spec.servers_fetch),
        called_by=(Caller(Role.GENERATION, "grpc", "reads the start model and versions", methods=FILES),),
        sealed=True,
        run_parts=(_HUB_MODEL, RunPart(_LAYOUT.weights)),
        reads=(SourceKind.MODEL,),
        needs=PodNeeds(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"}, grace_s=30),
    ),
    RoleSpec(
        role=Role.ARCHIVE,
        what="copies the run directory into the job's object store",
        entry="areal.local.archive:run",
        workload="Deployment",
        template_key="tools",
        count=lambda spec, verifier: int(spec.storage.store is not None),
        run_parts=(RunPart(_LAYOUT.root),),
        reads_store=True,
        needs=PodNeeds(requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1Gi"}, grace_s=30),
        recreate=True,  # a second one beside it would send the same again
    ),
    RoleSpec(
        role=Role.GATEWAY,
        what="the HTTP address of agents' sessions: hands each call to the worker that has its session",
        entry="areal.rollout.gateway:run",
        workload="StatefulSet",
        template_key="gateway",
        rl_only=True,
        count=lambda spec, verifier: spec.rollout.gateway.replicas,
        indexed=True,
        ports=("http", "grpc", "metrics"),
        called_by=GATEWAY_CALLERS,
        secret=(DIGESTS_KEY, SESSION_KEY),
        needs=_needs("250m", "256Mi", limit="1Gi", scratch="64Mi", grace_s=45),
        headless=True,
        front=("http",),
        held=("http",),
        max_unavailable=1,
    ),
    RoleSpec(
        role=Role.WORKER,
        what="runs the recipe's workflow: asks for tokens and scores, adds samples to the ledger",
        entry="areal.rollout.worker.main:run",
        workload="StatefulSet",
        template_key="worker",
        rl_only=True,
        count=lambda spec, verifier: spec.rollout.workers,
        indexed=True,
        drain_s=15,
        depends_on=(Role.CONTROLLER, Role.REWARD, Role.REWARD_CUSTOM, Role.REWARD_MODEL, Role.BOXES, Role.GATEWAY),
        secret=(DIGESTS_KEY, SESSION_KEY),
        redis_login="worker",
        run_parts=(_RECIPE, _HUB_MODEL, RunPart(_LAYOUT.trajectories, writable=True)),
        reads=(SourceKind.MODEL,),  # the tokenizer
        needs=_needs("250m", "512Mi", limit="4Gi", scratch="2Gi", grace_s=60),
        headless=True,
    ),
    RoleSpec(
        role=Role.TRAINER,
        what="takes batches from the ledger, trains, publishes weights, writes checkpoints",
        program=RoleProgram.TORCHRUN,
        workload="StatefulSet",
        template_key="trainer",
        count=lambda spec, verifier: spec.trainer.replicas,
        indexed=True,
        gang=True,
        ports=("grpc", "metrics", "rendezvous"),
        start_s=600,
        drain_s=60,  # draining ends with a checkpoint
        pod_drain_s=600,  # a large one on a shared volume; the pod's own grace may be shorter
        depends_on=(Role.REDIS, Role.CONTROLLER),
        called_by=TRAINER_CALLERS,
        redis_login="trainer",
        run_parts=_WHOLE_RUN,  # evidence, fences, checkpoints, weights, the model
        reads=(SourceKind.MODEL, SourceKind.HOOKS),
        needs=PodNeeds(requests={"cpu": "250m", "memory": "1Gi"}, grace_s=660),  # only its owner knows the model's size
        headless=True,
        holds_model=True,
        max_unavailable=1,  # a drain takes one of them, and the gang starts again from its checkpoint
    ),
    RoleSpec(
        role=Role.VIEW,
        what="shows the run to people in a browser",
        entry="areal_view.pages.main:run",
        workload="Deployment",
        template_key="tools",
        count=lambda spec, verifier: 1 if spec.observability.view else 0,
        ports=("http",),
        called_by=(Caller(Outsider.VIEWERS, "http", "browsers, each with a login of its own"),),
        secret=(),
        run_parts=(RunPart(_LAYOUT.root),),
        needs=_needs("50m", "128Mi", limit="512Mi", scratch="2Gi", grace_s=30),  # the index of its recording
        beside=True,
        asks_api_server=True,
    ),
    RoleSpec(
        role=Role.PREPARE,
        what="looks at every source and fills the run directory, before all others",
        entry="areal.admit.prepare:run",
        workload="Job",
        template_key="tools",
        ports=(),
        secret=(),
        run_parts=_WHOLE_RUN,
        reads=(SourceKind.MODEL, SourceKind.REWARD_MODEL, SourceKind.HOOKS, SourceKind.RECIPE, SourceKind.DATASET),
        reads_store=True,
        needs=_TOOL,
    ),
    RoleSpec(
        role=Role.FINISH,
        what="audits the run and writes its report, after all others",
        entry="areal.local.finish:run",
        workload="Job",
        template_key="tools",
        ports=(),
        secret=(),
        run_parts=_WHOLE_RUN,
        reads_store=True,
        needs=_TOOL,
    ),
    RoleSpec(
        role=Role.UPLOAD,
        what="receives the user's files for `areal submit`",
        program=RoleProgram.RECEIVER,
        workload="Pod",
        template_key="tools",
        ports=(),
        secret=(),
    ),
)

ROLE_SPECS: dict[Role, RoleSpec] = {row.role: row for row in _ROWS}
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
