"""Rules of LoRA: what adapters are trained on, and what the engine must have room for."""

from itertools import pairwise

from areal.spec.job import JobSpec, RLJob
from areal.spec.rules import Facts, rule, rule_of_every_training
from areal.spec.serving import SglangEngine

_NONE = "!has(self.spec.trainer.lora)"
_TRAININGS = ("RL", "SFT", "DPO")
_TOGETHER = ("q_proj", "k_proj", "v_proj")  # one matrix in the engine


@rule_of_every_training(
    "Adapters are trained by RL, SFT and DPO.",
    cel=f"{_NONE} || !has(self.spec.training) || self.spec.training.name in ['SFT', 'DPO']",
)
def lora_training(job: RLJob, facts: Facts) -> str | None:
    if job.spec.trainer.lora is None or job.spec.training in _TRAININGS:
        return None
    return f"training {job.spec.training} trains all weights"


@rule("SGLang adapts query, key and value together: all of q_proj, k_proj, v_proj, or query and value alone, or none.")
def lora_attention(job: RLJob, facts: Facts) -> str | None:
    lora = job.spec.trainer.lora
    if lora is None or job.spec.generation.engine.type != "sglang":
        return None
    missing = [name for name in _TOGETHER if name not in lora.targets]
    if missing == ["k_proj"]:  # its part of the matrix is then zero
        return None
    return f"{', '.join(missing)} is missing" if 0 < len(missing) < len(_TOGETHER) else None


@rule(
    "An adapter's base is the KL reference: there is no second model to put elsewhere.",
    cel=f"{_NONE} || !has(self.spec.algorithm.kl) || self.spec.algorithm.kl.placement == 'same'",
)
def lora_reference(job: RLJob, facts: Facts) -> str | None:
    kl = job.spec.algorithm.kl
    if job.spec.trainer.lora is None or kl is None or kl.placement == "same":
        return None
    return f"the reference is the policy without its adapter, and kl.placement is {kl.placement}"


@rule("SGLang has room for the adapters: a rank of at least trainer.lora.rank, and maxStaleness + 2 of them.")
def lora_room(job: RLJob, facts: Facts) -> str | None:
    lora, engine = job.spec.trainer.lora, job.spec.generation.engine
    if lora is None or not isinstance(engine, SglangEngine):
        return None
    slots = lora_slots(job.spec)
    needed = {"--max-lora-rank": lora.rank, "--max-loras-per-batch": slots, "--max-loaded-loras": slots}
    given = [word for argument in engine.extra_args for word in argument.split("=", 1)]
    for name, value in pairwise(given):
        if name in needed and (not value.isdecimal() or int(value) < needed[name]):
            eta = job.spec.algorithm.max_staleness
            return f"{name} is {value}, and adapters of rank {lora.rank} at η = {eta} need {needed[name]}"
    return None


def lora_slots(spec: JobSpec) -> int:
    """Adapters that a server holds: of all versions that may still make a token, η + 1, and the one that comes."""
    return spec.algorithm.max_staleness + 2


@rule_of_every_training("The model has every linear layer that trainer.lora.targets names.")
def lora_targets(job: RLJob, facts: Facts) -> str | None:
    lora, there = job.spec.trainer.lora, facts.model_matrices
    if lora is None or there is None or not (missing := [name for name in lora.targets if name not in there]):
        return None
    return f"the model has no {', '.join(missing)}, only {', '.join(sorted(there))}"
