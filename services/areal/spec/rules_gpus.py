"""Rules of GPUs: processes, precision, what the engine is split over, what pods ask for."""

from areal.spec.gpu_defaults import DTYPE_CEL, ENGINE_GPUS_CEL, GPU, PRECISION_CEL
from areal.spec.job import RLJob
from areal.spec.rules import Facts, Rule, Severity, rule, rule_of_every_training, warning
from areal.spec.serving import SglangEngine

EMBEDDED_PARAMETERS = 300_000_000  # beyond it the engine of this project is a demonstration

_SGLANG = "self.spec.generation.engine.type == 'sglang'"


@rule_of_every_training(
    "Each GPU of a trainer has one process: procPerNode = gpus.",
    cel=(
        "self.spec.trainer.gpus == 0 || !has(self.spec.trainer.procPerNode) || "
        "self.spec.trainer.procPerNode == self.spec.trainer.gpus"
    ),
)
def gpus_and_processes(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.gpus in (0, trainer.proc_per_node):
        return None
    return f"{trainer.gpus} GPUs a node and {trainer.proc_per_node} processes: each process has one GPU"


@rule(
    "A server on GPUs has one for each part of its model: gpus = tensorParallel.",
    cel=(
        f"!({_SGLANG}) || !has(self.spec.generation.engine.gpus) || self.spec.generation.engine.gpus == 0 || "
        "self.spec.generation.engine.gpus == (has(self.spec.generation.engine.tensorParallel) ? "
        "self.spec.generation.engine.tensorParallel : 1)"
    ),
)
def engine_gpus(job: RLJob, facts: Facts) -> str | None:
    engine = job.spec.generation.engine
    if not isinstance(engine, SglangEngine) or engine.gpus in (0, engine.tensor_parallel):
        return None
    return f"{engine.gpus} GPUs a server, and its model in {engine.tensor_parallel} parts"


@rule("SGLang serves bfloat16 on GPUs.", cel=f"!({_SGLANG}) || {ENGINE_GPUS_CEL} == 0 || {DTYPE_CEL} != 'float32'")
def precision_on_gpu(job: RLJob, facts: Facts) -> str | None:
    engine = job.spec.generation.engine
    if not isinstance(engine, SglangEngine) or engine.gpus == 0 or engine.dtype != "float32":
        return None
    return "float32 on GPUs: SGLang's attention kernels take 16-bit numbers only"


@rule_of_every_training(
    "A trainer on GPUs computes in bfloat16; its weights stay float32, its moments are as optimizerState says.",
    cel=f"self.spec.trainer.gpus == 0 || {PRECISION_CEL} == 'bfloat16'",
    severity=Severity.WARNING,
)
def trainer_precision_on_gpu(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.gpus == 0 or trainer.precision == "bfloat16":
        return None
    return "float32 on GPUs takes twice the memory of bfloat16 and about eight times its time"


@rule_of_every_training(
    "Attention by segments takes 16-bit numbers only on GPUs.",
    cel=(f"self.spec.trainer.gpus == 0 || self.spec.trainer.attention != 'varlen' || {PRECISION_CEL} == 'bfloat16'"),
)
def attention_on_gpu(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.gpus == 0 or trainer.attention != "varlen" or trainer.precision == "bfloat16":
        return None
    return "varlen in float32 on GPUs: flash kernels take 16-bit numbers only"


@rule_of_every_training(
    "Compiled layers are whole: no adapters, no mesh.tensor or mesh.context, nothing offloaded; attention by a "
    "mask or, on GPUs, by segments.",
    cel=(
        "self.spec.trainer.compile != 'blocks' || "
        "(!has(self.spec.trainer.lora) && self.spec.trainer.mesh.tensor == 1 && self.spec.trainer.mesh.context == 1 && "
        "self.spec.trainer.recompute != 'offload' && "
        "(self.spec.trainer.attention in ['auto', 'dense'] || "
        "self.spec.trainer.gpus > 0 && self.spec.trainer.attention == 'varlen'))"
    ),
)
def compiled_layers(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    found = trainer.uncompilable if trainer.compile == "blocks" else []
    return f"compile: blocks doesn't go with {', '.join(found)}" if found else None


@rule_of_every_training(
    "FlexAttention has no gradient on CPUs.", cel="self.spec.trainer.gpus > 0 || self.spec.trainer.attention != 'flex'"
)
def flex_on_cpu(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.gpus or trainer.attention != "flex":
        return None
    return "flex without GPUs: PyTorch's FlexAttention has no gradient on CPUs"


@rule_of_every_training(
    "An optimizer's state is moved to host memory from GPUs.",
    cel="self.spec.trainer.gpus > 0 || self.spec.trainer.optimizerState != 'cpu'",
)
def cpu_state_on_cpu(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.gpus or trainer.optimizer_state != "cpu":
        return None
    return "without GPUs the optimizer's state is in host memory as it is"


@rule("A model splits between its attention heads: tensorParallel divides their number.")
def tensor_divides_heads(job: RLJob, facts: Facts) -> str | None:
    engine, heads = job.spec.generation.engine, facts.model_attention_heads
    if not isinstance(engine, SglangEngine) or heads is None or heads % engine.tensor_parallel == 0:
        return None
    return f"{heads} attention heads don't split into {engine.tensor_parallel} equal parts"


@rule(
    "The engine takes the longest sample: contextLength ≥ maxSampleTokens.",
    cel=(
        f"!({_SGLANG}) || !has(self.spec.generation.engine.contextLength) || "
        "self.spec.generation.engine.contextLength >= self.spec.rollout.maxSampleTokens"
    ),
)
def engine_context(job: RLJob, facts: Facts) -> str | None:
    engine, sample = job.spec.generation.engine, job.spec.rollout.max_sample_tokens
    if not isinstance(engine, SglangEngine) or engine.context_length is None or engine.context_length >= sample:
        return None
    return f"a sample may have {sample} tokens, the engine takes {engine.context_length}"


@warning(f"The embedded engine runs on CPUs: it is for up to {EMBEDDED_PARAMETERS // 10**6} million parameters.")
def embedded_too_large(job: RLJob, facts: Facts) -> str | None:
    count = facts.model_parameters
    if job.spec.generation.engine.type != "embedded" or count is None or count <= EMBEDDED_PARAMETERS:
        return None
    return f"{count / 1e9:.1f} billion parameters on CPUs: each token takes {2 * count / 1e9:.0f} GFLOP"


_SEPARATE = "self.spec.placement != 'shared'"


@rule(
    "On shared devices generation is one version ahead at most: maxStaleness ≤ 1.",
    cel=f"{_SEPARATE} || self.spec.algorithm.maxStaleness <= 1",
)
def shared_staleness(job: RLJob, facts: Facts) -> str | None:
    staleness = job.spec.algorithm.max_staleness
    if not job.spec.shared_cards or staleness <= 1:
        return None
    return f"maxStaleness {staleness}: on shared devices nothing is generated while the trainer works"


@rule(
    "On shared devices weights come by the volume: a process group needs trainer and servers at once.",
    cel=f"{_SEPARATE} || self.spec.weightSync.mode != 'Group'",
)
def shared_weights(job: RLJob, facts: Facts) -> str | None:
    if not job.spec.shared_cards or job.spec.weight_sync.mode != "Group":
        return None
    return "weightSync.mode Group with placement shared: trainer and servers are never there at once"


@rule(
    "Trainer and servers that share devices are on the same kind, of one machine.",
    cel=(
        f"{_SEPARATE} || (self.spec.trainer.replicas == 1 && (self.spec.trainer.gpus > 0) == "
        f"({_SGLANG} && {ENGINE_GPUS_CEL} > 0))"
    ),
)
def shared_devices(job: RLJob, facts: Facts) -> str | None:
    trainer, engine = job.spec.trainer, job.spec.generation.engine
    serving = engine.gpus if isinstance(engine, SglangEngine) else 0
    if not job.spec.shared_cards or (trainer.replicas == 1 and bool(trainer.gpus) == bool(serving)):
        return None
    return (
        f"placement shared with {trainer.replicas} trainer nodes of {trainer.gpus} GPUs and servers of {serving}: "
        "there is nothing that both could have by turns"
    )


def _pod_gpus(id: str, role: str, owner: str) -> Rule:
    """That a role's podTemplate asks for no other number of GPUs than the field that owns it."""

    @rule(
        f"GPUs of {role} pods are named once: {owner}.",
        id=id,
        field=f"spec.podTemplate.{role}.resources",
        fix=f"Remove {GPU} from podTemplate.{role}.resources, and set {owner}.",
        cel=None,  # through a mapping an API server knows no bound of its cost
        every_training=role == "trainer",
    )
    def broken(job: RLJob, facts: Facts) -> str | None:
        asked = getattr(job.spec.pod_template, role).resources
        engine = job.spec.generation.engine
        count = job.spec.trainer_pod_gpus if role == "trainer" else getattr(engine, "gpus", 0)
        for kind, amounts in (("requests", asked.requests), ("limits", asked.limits)):
            if (given := amounts.get(GPU)) is not None and given != str(count):
                if role == "generation" and engine.type == "embedded":
                    return f"{kind} ask for {given} GPUs, and the embedded engine has no use for any"
                return f"{kind} ask for {given} GPUs, {owner} is {count}"
        return None

    return broken


trainer_pod_gpus = _pod_gpus("gpus-of-trainer-pods", "trainer", "trainer.gpus")
generation_pod_gpus = _pod_gpus("gpus-of-generation-pods", "generation", "generation.engine.gpus")
