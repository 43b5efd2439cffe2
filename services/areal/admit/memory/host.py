"""Memory of the pods, or of the node's processes, beside their GPUs: host memory, shared memory and staging disk.

Owns what a trainer's rank pins and what a pod asks for: `pod_memory`, which `areal check` prints and `areal submit`
writes. What CUDA, torch and SGLang take by themselves are estimates, and said to be. Pure.
"""

from dataclasses import dataclass

from areal.admit.memory.advice import work_of
from areal.admit.memory.rank import Beside, BudgetLine, host_bytes, host_state_bytes, idle_lines
from areal.admit.memory.shape import ModelShape
from areal.admit.memory.volume import ELEMENT, checkpoint_bytes
from areal.plan.cluster_names import Role
from areal.spec import RLJob
from areal.spec.quantity import show_bytes
from areal.spec.serving import SglangEngine

_GIB = 1 << 30
_RANK_BYTES = 6 * _GIB  # estimate: a rank's CUDA context, torch, NCCL, one batch's rows
_STANDBY_BYTES = 2 * _GIB  # estimate: torch and transformers, imported
_ENGINE_BYTES = 8 * _GIB  # estimate: a GPU's process of SGLang
_AGENT_BYTES = 2 * _GIB  # estimate: the server's agent
_HANDED = 3  # versions in /dev/shm: the served one, the one before it, the one that is written
_NCCL_SHARED = 32 << 20  # /dev/shm of a rank
_SGLANG_SHARED = 16 << 20  # /dev/shm of a server's GPU
_HEADROOM = 1.1  # page cache that is written back late, and the estimates
_STAGED = 3  # copies: the base, the next version, the one being applied


@dataclass(frozen=True)
class PodPlan:
    """Host memory of one pod. `shared` is in /dev/shm, and counts against the pod's limit; `staging` is on disk."""

    rows: tuple[BudgetLine, ...]
    shared: int  # bytes
    staging: int  # bytes

    @property
    def pinned(self) -> int:
        """Bytes that are held from the start, as the rows say; the others are estimates."""
        return sum(row.size for row in self.rows if "estimate" not in row.what)

    @property
    def limit(self) -> int:
        """Bytes the pod asks for and may use at most: whole GiB."""
        return -(-int((sum(row.size for row in self.rows) + self.shared) * _HEADROOM) // _GIB) * _GIB


def pod_plans(job: RLJob, shape: ModelShape, trained: int | None, teacher: ModelShape | None) -> dict[Role, PodPlan]:
    """Of the pods that have GPUs: a node's trainer, a server."""
    plans: dict[Role, PodPlan] = {}
    if job.spec.trainer.gpus:
        plans[Role.TRAINER] = _trainer(job, shape, work_of(job, trained, teacher))
    engine = job.spec.generation.engine
    if job.spec.is_rl and isinstance(engine, SglangEngine) and engine.gpus:
        plans[Role.GENERATION] = _server(job, shape, engine)
    if job.spec.shared_cards and len(plans) > 1:
        plans = {Role.TRAINER: _together(plans[Role.TRAINER], plans[Role.GENERATION], job.spec.generation.replicas)}
    return plans


def _together(trainer: PodPlan, server: PodPlan, servers: int) -> PodPlan:
    """Of a pod that has a trainer and its servers."""
    rows = tuple(BudgetLine(f"of servers: {row.what}", servers * row.size) for row in server.rows)
    shared, staging = trainer.shared + servers * server.shared, trainer.staging + servers * server.staging
    return PodPlan((*trainer.rows, *rows), shared, staging)


def pod_memory(plans: dict[Role, PodPlan]) -> dict[str, int]:
    """Bytes that a pod of each role asks for, request and limit alike."""
    return {f"{role}": plan.limit for role, plan in plans.items()}


def pod_lines(plans: dict[Role, PodPlan]) -> list[tuple[str, str]]:
    """A subject and a sentence each, for people."""
    lines = []
    for role, plan in plans.items():
        sums = " + ".join(f"{show_bytes(row.size)} {row.what}" for row in plan.rows)
        lines.append((f"host memory, a {role} pod", f"{sums}; requests and limits {show_bytes(plan.limit)}"))
        lines.append((f"shared memory, a {role} pod", f"{show_bytes(plan.shared)} in /dev/shm, of its memory"))
        if plan.staging:
            sentence = (
                f"{show_bytes(plan.staging)} in its scratch directory: {_STAGED} copies of the weights, for deltas"
            )
            lines.append((f"staging disk, a {role} pod", sentence))
    return lines


def _trainer(job: RLJob, shape: ModelShape, beside: Beside) -> PodPlan:
    """A node's ranks."""
    trainer = job.spec.trainer
    shards, local = trainer.shards, trainer.proc_per_node
    trained = beside.get("trained")
    published = shape.parameters if trained is None else trained
    saved = published + (shape.value_model.parameters if beside.get("critic") else 0)
    rows = (
        ("copy of the checkpoint, pinned", local * checkpoint_bytes(saved, beside.get("state", "float32")) // shards),
        ("copies of published weights, pinned", _published(job, shape, trained) if job.spec.is_rl else 0),
        ("frozen models between uses, pinned", local * host_bytes(shape, shards, beside)),
        ("optimizer's states", local * host_state_bytes(shape, shards, beside)),
        ("what the trainer holds, while servers have the cards, pinned", local * _away(job, shape, beside)),
        ("inputs of layers, pinned", local * _inputs(job, shape) if trainer.recompute == "offload" else 0),
        (f"{local} processes (estimate)", local * _RANK_BYTES),
        ("a standby, without a GPU yet (estimate)", _STANDBY_BYTES if trainer.standby else 0),
    )
    handed = _HANDED * _published(job, shape, trained) if job.spec.weights_by_memory else 0
    return PodPlan(tuple(BudgetLine(what, size) for what, size in rows if size), local * _NCCL_SHARED + handed, 0)


def _away(job: RLJob, shape: ModelShape, beside: Beside) -> int:
    """What a rank moves off a shared GPU: weights, moments, and the frozen models that are there."""
    if not job.spec.shared_cards:
        return 0
    lines = idle_lines(shape, job.spec.trainer.shards, job.spec.trainer.precision, beside)
    return sum(line.size for line in lines)


def _published(job: RLJob, shape: ModelShape, trained: int | None) -> int:
    """Copies of what a node's ranks publish: each tensor is one rank's, an adapter all the first's."""
    trainer = job.spec.trainer
    copies = 2 if job.spec.publishes_deltas(in_pods=job.spec.runtime_ref is not None) else 1
    if trained is not None:
        return copies * trained * ELEMENT[trainer.precision]
    share = shape.parameters / trainer.world_size
    matrices = 1 if shape.tied or shape.scores else 2
    extra = max(0.0, shape.vocabulary * shape.hidden - share)  # a matrix is one rank's, however many ranks there are
    first = min(trainer.proc_per_node, matrices)
    return int(copies * (trainer.proc_per_node * share + first * extra)) * ELEMENT[trainer.precision]


def _inputs(job: RLJob, shape: ModelShape) -> int:
    """What `offload` keeps of a rank's micro-batch; torch rounds each tensor up to a power of two."""
    own = -(-job.spec.trainer.micro_batch_tokens // job.spec.trainer.mesh.context)
    return shape.layers * (1 << (own * shape.hidden * ELEMENT[job.spec.trainer.precision] - 1).bit_length())


def _server(job: RLJob, shape: ModelShape, engine: SglangEngine) -> PodPlan:
    weights = shape.all_parameters * ELEMENT[engine.dtype]
    rows = (
        BudgetLine("weights while they are read", weights),
        BudgetLine(f"{engine.tensor_parallel} processes of SGLang (estimate)", engine.tensor_parallel * _ENGINE_BYTES),
        BudgetLine("agent (estimate)", _AGENT_BYTES),
    )
    staged = job.spec.publishes_deltas(in_pods=job.spec.runtime_ref is not None)
    return PodPlan(rows, engine.tensor_parallel * _SGLANG_SHARED, _STAGED * weights if staged else 0)
