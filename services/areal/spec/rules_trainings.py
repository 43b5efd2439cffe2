"""Rules of the kinds of training: which blocks belong to which, and the settings of supervised ones."""

from __future__ import annotations

from areal.spec.job import JobSpec, RLJob
from areal.spec.rules import Facts, Severity, rule
from areal.spec.supervised import BLOCKS

_ONLY_RL = ("rollout", "reward", "generation", "replay", "weight_sync")  # blocks of roles that others don't have
_SUPERVISED = tuple(block for name, block in BLOCKS.items() if name != "RL")


def _each(condition: str) -> str:
    """CEL: a condition on whichever supervised block is there, which it calls `block`."""
    blocks = [f"self.spec.{name}" for name in _SUPERVISED]
    return " && ".join(f"(!has({block}) || {condition.replace('block', block)})" for block in blocks)


@rule(
    "training-block",
    "spec.training",
    "A job has the block of its training and no other's: algorithm for RL, sft for SFT, dpo for DPO, rewardModel for "
    "RewardModel, distillation for Distillation.",
    fix="Give the block that the training needs, and remove the others.",
    cel=" && ".join(f"(self.spec.training == '{name}') == has(self.spec.{block})" for name, block in BLOCKS.items()),
    every_training=True,
)
def training_block(job: RLJob, facts: Facts) -> str | None:
    spec = job.spec
    given = {
        "algorithm": spec.algorithm_block, "sft": spec.sft, "dpo": spec.dpo, "rewardModel": spec.reward_model,
        "distillation": spec.distillation,
    }  # fmt: skip
    needed = BLOCKS[spec.training]
    if given[needed] is None:
        return f"training {spec.training} needs the block {needed}, which isn't given"
    strange = [name for name, block in given.items() if block is not None and name != needed]
    return f"{' and '.join(strange)} is given, but the training is {spec.training}" if strange else None


@rule(
    "training-without-roles",
    "spec.training",
    "rollout, reward, generation, replay and weightSync are set for RL only: other trainings generate nothing.",
    fix="Remove these blocks, or set training: RL.",
    cel=None,  # an API server fills in their defaults, and can't tell them from what was given
    every_training=True,
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


@rule(
    "epochs-or-steps",
    "spec.training",
    "A supervised run's length is given once: by epochs or by maxSteps.",
    fix="Keep one of epochs and maxSteps.",
    cel=_each("!has(block.epochs) || !has(block.maxSteps)"),
    every_training=True,
)
def epochs_or_steps(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.supervised
    if block is None or block.epochs is None or block.max_steps is None:
        return None
    return f"both epochs ({block.epochs}) and maxSteps ({block.max_steps}) are given"


@rule(
    "supervised-micro-batch",
    "spec.trainer.microBatchTokens",
    "A micro-batch holds the longest row: microBatchTokens ≥ maxTokens.",
    fix="Raise trainer.microBatchTokens, or lower maxTokens.",
    cel=_each("block.maxTokens <= self.spec.trainer.microBatchTokens"),
    every_training=True,
)
def supervised_micro_batch(job: RLJob, facts: Facts) -> str | None:
    block, micro = job.spec.supervised, job.spec.trainer.micro_batch_tokens
    if block is None or block.max_tokens <= micro:
        return None
    return f"a row may have {block.max_tokens} tokens, a micro-batch holds {micro}"


@rule(
    "supervised-betas",
    "spec.training",
    "AdamW's β are at least 0 and below 1.",
    fix="Set betas, for example to [0.9, 0.99].",
    cel=_each("block.betas.all(b, b >= 0.0 && b < 1.0)"),
    every_training=True,
)
def supervised_betas(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.supervised
    if block is None or all(0 <= value < 1 for value in block.betas):
        return None
    return f"betas are {block.betas[0]:g} and {block.betas[1]:g}"


@rule(
    "smoothing-of-sigmoid",
    "spec.dpo.labelSmoothing",
    "Label smoothing belongs to the sigmoid loss.",
    fix="Set dpo.labelSmoothing: 0, or dpo.loss: sigmoid.",
    cel="!has(self.spec.dpo) || self.spec.dpo.loss == 'sigmoid' || self.spec.dpo.labelSmoothing == 0.0",
    every_training=True,
)
def smoothing_of_sigmoid(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.dpo
    if block is None or block.loss == "sigmoid" or not block.label_smoothing:
        return None
    return f"the loss {block.loss} has no labels to smooth, and labelSmoothing is {block.label_smoothing:g}"


@rule(
    "share-of-jsd",
    "spec.distillation.teacherShare",
    "The teacher's share belongs to the loss jsd.",
    fix="Remove distillation.teacherShare, or set distillation.loss: jsd.",
    cel="!has(self.spec.distillation) || self.spec.distillation.loss == 'jsd' || "
    "self.spec.distillation.teacherShare == 0.5",
    every_training=True,
)
def share_of_jsd(job: RLJob, facts: Facts) -> str | None:
    block = job.spec.distillation
    if block is None or block.loss == "jsd" or block.teacher_share == 0.5:
        return None
    return f"the loss {block.loss} has no mixture, and teacherShare is {block.teacher_share:g}"


@rule(
    "supervised-batch",
    "spec.dataset.train",
    "A batch has different rows: the dataset has at least batchSize of them.",
    fix="Add rows, or lower batchSize.",
    cel=None,
    severity=Severity.WARNING,
    every_training=True,
)
def supervised_batch(job: RLJob, facts: Facts) -> str | None:
    block, rows = job.spec.supervised, facts.train_rows
    if block is None or rows is None or rows >= block.batch_size:
        return None
    return f"{rows} rows for batches of {block.batch_size}: rows repeat within a step"


@rule(
    "supervised-context",
    "spec.training",
    "A row fits the model's context.",
    fix="Lower maxTokens, or use a model with a longer context.",
    cel=None,
    every_training=True,
)
def supervised_context(job: RLJob, facts: Facts) -> str | None:
    block, context = job.spec.supervised, facts.model_context_tokens
    if block is None or context is None or block.max_tokens <= context:
        return None
    return f"maxTokens is {block.max_tokens}, the model's context is {context}"


RULES = (
    training_block,
    training_without_roles,
    epochs_or_steps,
    supervised_micro_batch,
    supervised_betas,
    smoothing_of_sigmoid,
    share_of_jsd,
    supervised_batch,
    supervised_context,
)
