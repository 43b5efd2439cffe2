"""Memory of servers and space of a run's volume: sentences with the arithmetic, and what can't fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from areal.admit.memory.shape import ModelShape
from areal.spec import Finding, RLJob, Severity
from areal.spec.numbers import exports_kept
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic
from areal.spec.serving import DEFAULT_CACHE_BYTES, EmbeddedEngineBlock, SglangEngine

_SGLANG_SHARE = 0.85  # estimate: of memory for weights and cache where the job names no share
TRAINER_ASLEEP = 3 << 29  # estimate: the CUDA contexts of a trainer that gave its memory back
_SERVER_ASLEEP = 5 << 29  # estimate: the contexts and graphs of a server that did
_CHECKPOINT_BYTES = {"float32": 12, "bfloat16": 8, "cpu": 12}  # a parameter: float32 weights, two moments
_MOST_REQUESTS = 512  # beyond, a step of decoding takes longer by what it makes more
VERSIONS_KEPT = 3  # published weights: the newest, the one before, the one being written
ELEMENT = {"float32": 4, "bfloat16": 2}

OptimizerState = Literal["float32", "bfloat16", "cpu"]


@dataclass(frozen=True)
class HostFacts:
    """What this machine has: memory for a pod or process, free space where runs are, and its GPUs' names."""

    memory: int  # bytes
    disk: Path
    free: int  # bytes
    gpus: tuple[str, ...]


def caches_of(job: RLJob, memory: int) -> list[Finding]:
    """What is wrong with the caches of servers on one machine that has `memory` bytes.

    The default is no promise of the job's: small models fill little of it.
    """
    engine, servers = job.spec.generation.engine, job.spec.generation.replicas
    if not job.spec.is_rl or not isinstance(engine, EmbeddedEngineBlock) or engine.cache_memory <= DEFAULT_CACHE_BYTES:
        return []
    if servers * engine.cache_memory <= memory:
        return []
    field = "spec.generation.engine.cacheMemory"
    caches = "its cache" if servers == 1 else f"the caches of {servers} servers"
    message = (
        f"{caches} may take {show_bytes(servers * engine.cache_memory)}, and this machine has {show_bytes(memory)}"
    )
    fix = f"Lower generation.engine.cacheMemory below {show_bytes(memory // servers)}, or leave it out."
    return [Finding("cache-beyond-memory", Severity.ERROR, field, message, fix, job.where(field))]


def disk_space(job: RLJob, parameters: int, trained: int | None, host: HostFacts) -> list[Finding]:
    """What is wrong with the free space of this machine, of a model of so many parameters, `trained` of an adapter."""
    needed = disk_bytes(
        parameters,
        checkpoints=job.spec.checkpoint.keep,
        dtype=job.spec.generation.engine.dtype,
        models=1 + has_critic(job.spec),
        trained=trained,
        exports=exports_kept(job),
        state=job.spec.trainer.optimizer_state,
    )
    if host.free >= needed:
        return []
    keep = job.spec.checkpoint.keep
    saved = (parameters if trained is None else trained) + parameters * has_critic(job.spec)
    checkpoint = show_bytes(checkpoint_bytes(saved, job.spec.trainer.optimizer_state))
    message = (
        f"{host.disk} has {show_bytes(host.free)} free, the run needs {show_bytes(needed)}: {keep} + 1 checkpoints of "
        f"{checkpoint} and {VERSIONS_KEPT} versions of the weights"
        + (f", and {exports_kept(job)} exported models" if job.spec.export is not None else "")
    )
    fix = "Free space there, lower checkpoint.keep or export.keep, or choose another disk with --run-dir."
    return [Finding("disk-space", Severity.ERROR, "spec.checkpoint.keep", message, fix, job.where("spec.checkpoint"))]


def server_memory(job: RLJob, shape: ModelShape) -> tuple[list[Finding], list[tuple[str, str]]]:
    engine, memory = job.spec.generation.engine, job.spec.trainer.gpu_memory
    if not job.spec.is_rl:
        return [], []
    if isinstance(engine, EmbeddedEngineBlock):
        tokens, sample = tokens_in(shape, engine.cache_memory, engine.dtype), job.spec.rollout.max_sample_tokens
        held = f"generation.engine.cacheMemory, {show_bytes(engine.cache_memory)}, holds {tokens:,} tokens"
        return [], [("a server's cache", f"{held}, {tokens // sample:,} samples of {sample:,}")]
    if not isinstance(engine, SglangEngine) or not engine.gpus or memory is None:
        return [], []
    shared, plan = job.spec.shared_cards, _planned(job, shape, engine, memory)
    sample = job.spec.rollout.max_sample_tokens
    sentence = (
        f"{show_bytes(plan.weights)} of weights in {show_bytes(plan.room)} for weights and cache; a server's cache "
        f"holds {plan.cache_tokens:,} tokens, {plan.cache_tokens // sample:,} samples of {sample:,}; it decodes "
        f"{engine.max_running_requests or running_requests(job, shape)} at once"
    )
    if shared:
        sentence += f"; {show_bytes(TRAINER_ASLEEP)} are the sleeping trainer's (estimate)"
    lines = [("a shared GPU while servers generate" if shared else "a server's GPU", sentence)]
    if plan.cache_tokens >= sample:
        return [], lines
    field = "spec.generation.engine.tensorParallel"
    fix = "Raise generation.engine.tensorParallel, or lower rollout.maxSampleTokens."
    return [Finding("server-does-not-fit", Severity.ERROR, field, sentence, fix, job.where(field))], lines


def _planned(job: RLJob, shape: ModelShape, engine: SglangEngine, memory: int) -> "ServerPlan":
    memory -= TRAINER_ASLEEP if job.spec.shared_cards else 0
    return plan_server(shape, memory, parts=engine.tensor_parallel, dtype=engine.dtype, share=engine.mem_fraction)


def running_requests(job: RLJob, shape: ModelShape) -> int | None:
    """Sequences that SGLang decodes at once where the job doesn't say: half-long samples that its cache holds."""
    engine, memory = job.spec.generation.engine, job.spec.trainer.gpu_memory
    if not job.spec.is_rl or not isinstance(engine, SglangEngine) or not engine.gpus or memory is None:
        return None
    if engine.max_running_requests is not None:
        return None
    fitting = 2 * _planned(job, shape, engine, memory).cache_tokens // job.spec.rollout.max_sample_tokens
    return max(1, min(fitting, _MOST_REQUESTS))


def disk_memory(job: RLJob, shape: ModelShape, trained: int | None) -> tuple[list[Finding], list[tuple[str, str]]]:
    keep, exports = job.spec.checkpoint.keep, exports_kept(job)
    needed = disk_bytes(
        shape.parameters,
        checkpoints=keep,
        dtype=job.spec.generation.engine.dtype,
        models=1 + has_critic(job.spec),
        trained=trained,
        exports=exports,
        state=job.spec.trainer.optimizer_state,
    )
    models = f" and {exports} exported models" if exports else ""
    sentence = f"{keep} + 1 checkpoints and 3 versions of the weights{models} take {show_bytes(needed)}"
    size = job.spec.storage.size
    if size is None or size >= needed:
        return [], [("disk", sentence)] if job.spec.trainer.gpus else []
    field = "spec.storage.size"
    message = f"the volume has {show_bytes(size)}, and {sentence}"
    or_exports = " or export.keep" if exports else ""
    fix = f"Raise storage.size to {-(-needed // (1 << 30))}Gi, or lower checkpoint.keep{or_exports}."
    return [Finding("disk-too-small", Severity.ERROR, field, message, fix, job.where(field))], []


def asleep_bytes(job: RLJob, shape: ModelShape) -> int:
    """Bytes of a GPU that a sleeping server keeps: an adapter's base stays there, with the contexts and graphs."""
    engine = job.spec.generation.engine
    if not job.spec.shared_cards or not isinstance(engine, SglangEngine) or not engine.gpus:
        return 0
    base = shape.all_parameters * ELEMENT[engine.dtype] // engine.tensor_parallel
    return _SERVER_ASLEEP + (base if job.spec.trainer.lora is not None else 0)


@dataclass(frozen=True)
class ServerPlan:
    """What one GPU of a generation server holds. `cache_tokens` is of the whole server."""

    weights: int  # bytes a GPU
    room: int  # bytes a GPU for weights and cache
    cache_tokens: int

    @property
    def fits(self) -> bool:
        return self.cache_tokens > 0


def plan_server(shape: ModelShape, memory: int, *, parts: int, dtype: str, share: float | None) -> ServerPlan:
    """The budget of a server whose model is split into `parts`, one a GPU of `memory` bytes."""
    element = ELEMENT[dtype]
    weights = shape.all_parameters * element // parts
    room = int(memory * (share or _SGLANG_SHARE))
    return ServerPlan(weights, room, tokens_in(shape, max(0, room - weights) * parts, dtype))


def tokens_in(shape: ModelShape, cache_bytes: int, dtype: str) -> int:
    """Tokens whose keys and values fit into so many bytes."""
    return cache_bytes // (2 * shape.layers * shape.keys * ELEMENT[dtype])


def checkpoint_bytes(parameters: int, state: OptimizerState) -> int:
    """What one checkpoint of so many trained parameters takes."""
    return parameters * _CHECKPOINT_BYTES[state]


def disk_bytes(
    parameters: int,
    *,
    checkpoints: int,
    dtype: str,
    models: int = 1,
    trained: int | None = None,
    exports: int = 0,
    state: OptimizerState = "float32",
) -> int:
    """What a run's checkpoints, published weights and exported models take at most.

    Args:
        exports: models in exports/, each whole also where an adapter is trained.
        checkpoints: how many are kept; one more is there while it is written.
        models: how many of them are in a checkpoint: two with a critic.
        trained: parameters of an adapter, saved and published instead of the policy's.
        state: what the optimizers' moments are in.
    """
    policy = parameters if trained is None else trained
    saved = policy + parameters * (models - 1)
    published = policy * VERSIONS_KEPT + parameters * exports
    return checkpoint_bytes(saved, state) * (checkpoints + 1) + published * ELEMENT[dtype]
