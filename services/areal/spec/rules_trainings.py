"""Rules of the kinds of training: RL or fixed rows, and the settings of trainings on fixed rows."""

from areal.spec.job import JobSpec, RLJob
from areal.spec.rules import Facts, Severity, rule_of_every_training

_ONLY_RL = ("rollout", "reward", "generation", "replay", "weight_sync")  # blocks of roles that others don't have
_IN_RL = "!has(self.spec.training) || "


@rule_of_every_training(
    "A job has either algorithm, for RL, or training, on fixed rows.",
    cel="has(self.spec.algorithm) != has(self.spec.training)",
)
def training_block(job: RLJob, facts: Facts) -> str | None:
    if job.spec.is_whole:
        return None
    return "neither is given" if job.spec.supervised is None else "both are given"


@rule_of_every_training(
    "rollout, reward, generation, replay and weightSync are set for RL only: other trainings generate nothing.",
    cel=None,  # an API server fills in their defaults, and can't tell them from what was given
)
def training_without_roles(job: RLJob, facts: Facts) -> str | None:
    spec = job.spec
    if spec.is_rl:
        return None
    fields = JobSpec.model_fields
    defaults = {name: fields[name].get_default(call_default_factory=True) for name in _ONLY_RL}
    if spec.trainer.gpus:  # from them follows the engine's precision, which nobody wrote
        defaults["generation"] = defaults["generation"].model_copy(update={"engine": spec.generation.engine})
    changed = [name for name, default in defaults.items() if getattr(spec, name) != default]
    if not changed:
        return None
    names = [fields[name].alias or name for name in changed]
    return f"{' and '.join(names)} says something of roles that a job of training {spec.training} doesn't have"


@rule_of_every_training(
    "A supervised run's length is given once: by epochs or by maxSteps.",
    cel=f"{_IN_RL}!has(self.spec.training.epochs) || !has(self.spec.training.maxSteps)",
)
def epochs_or_steps(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.supervised
    if block is None or block.epochs is None or block.max_steps is None:
        return None
    return f"both epochs ({block.epochs}) and maxSteps ({block.max_steps}) are given"


@rule_of_every_training(
    "A micro-batch holds the longest row: microBatchTokens ≥ maxTokens.",
    cel=f"{_IN_RL}self.spec.training.maxTokens <= self.spec.trainer.microBatchTokens",
)
def supervised_micro_batch(job: RLJob, facts: Facts) -> str | None:
    block, micro = job.spec.supervised, job.spec.trainer.micro_batch_tokens
    if block is None or block.max_tokens <= micro:
        return None
    return f"a row may have {block.max_tokens} tokens, a micro-batch holds {micro}"


@rule_of_every_training(
    "Label smoothing belongs to the sigmoid loss.",
    cel=(
        f"{_IN_RL}!has(self.spec.training.loss) || self.spec.training.loss == 'sigmoid' || "
        "!has(self.spec.training.labelSmoothing) || self.spec.training.labelSmoothing == 0.0"
    ),
)
def smoothing_of_sigmoid(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.dpo
    if block is None or block.loss == "sigmoid" or not block.label_smoothing:
        return None
    return f"the loss {block.loss} has no labels to smooth, and labelSmoothing is {block.label_smoothing:g}"


@rule_of_every_training(
    "The teacher's share belongs to the divergence jsd.",
    cel=(
        f"{_IN_RL}!has(self.spec.training.teacherShare) || self.spec.training.teacherShare == 0.5 || "
        "has(self.spec.training.divergence) && self.spec.training.divergence == 'jsd'"
    ),
)
def share_of_jsd(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.distillation
    if block is None or block.divergence == "jsd" or block.teacher_share == 0.5:
        return None
    return f"the divergence {block.divergence} has no mixture, and teacherShare is {block.teacher_share:g}"


@rule_of_every_training(
    "A batch has different rows: the dataset has at least batchSize of them.", severity=Severity.WARNING
)
def supervised_batch(job: RLJob, facts: Facts) -> str | None:
    block, rows = job.spec.supervised, facts.train_rows
    if block is None or rows is None or rows >= block.batch_size:
        return None
    return f"{rows} rows for batches of {block.batch_size}: rows repeat within a step"


@rule_of_every_training("A row fits the model's context.")
def supervised_context(job: RLJob, facts: Facts) -> str | None:
    block, context = job.spec.supervised, facts.model_context_tokens
    if block is None or context is None or block.max_tokens <= context:
        return None
    return f"maxTokens is {block.max_tokens}, the model's context is {context}"
