"""Rules of the optimizer and the trainer: updates, steps, learning rate, precision, memory."""

from areal.spec.gpu_defaults import DTYPE_CEL, PRECISION_CEL
from areal.spec.job import RLJob
from areal.spec.rules import Facts, rule, rule_of_every_training, warning

_HIGHEST_RATE = 0.1
_USUAL_RATE = 1e-3


@rule(
    "Every PPO update has at least one group: miniBatches ≤ batchSize.",
    cel="self.spec.algorithm.miniBatches <= self.spec.algorithm.batchSize",
)
def mini_batches(job: RLJob, facts: Facts) -> str | None:
    updates, groups = job.spec.algorithm.mini_batches, job.spec.algorithm.batch_size
    return None if updates <= groups else f"{groups} groups can't be cut into {updates} mini-batches"


@rule(
    "A micro-batch holds the longest sample: microBatchTokens ≥ maxSampleTokens.",
    cel="self.spec.trainer.microBatchTokens >= self.spec.rollout.maxSampleTokens",
)
def micro_batch_too_small(job: RLJob, facts: Facts) -> str | None:
    micro, sample = job.spec.trainer.micro_batch_tokens, job.spec.rollout.max_sample_tokens
    return None if micro >= sample else f"a sample may have {sample} tokens, a micro-batch holds {micro}"


@rule_of_every_training(
    "A packed row fits into a micro-batch: packLength ≤ microBatchTokens.",
    cel="!has(self.spec.trainer.packLength) || self.spec.trainer.packLength <= self.spec.trainer.microBatchTokens",
)
def pack_length(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.pack_length is None or trainer.pack_length <= trainer.micro_batch_tokens:
        return None
    return f"a row of {trainer.pack_length} tokens doesn't fit a micro-batch of {trainer.micro_batch_tokens}"


@rule_of_every_training(
    f"learningRate ≤ {_HIGHEST_RATE:g}.",
    cel=f"!has(self.spec.optimizer.learningRate) || self.spec.optimizer.learningRate <= {_HIGHEST_RATE}",
)
def learning_rate_range(job: RLJob, facts: Facts) -> str | None:
    rate = job.spec.optimizer.learning_rate
    if rate <= _HIGHEST_RATE:
        return None
    return f"{rate:g} is no learning rate for AdamW: each step would move every weight by about {rate:g}"


@warning(
    f"learningRate ≤ {_USUAL_RATE:g}, as in every known recipe.",
    cel=(
        f"!has(self.spec.optimizer.learningRate) || self.spec.optimizer.learningRate <= {_USUAL_RATE} || "
        f"self.spec.optimizer.learningRate > {_HIGHEST_RATE}"
    ),
)
def learning_rate_high(job: RLJob, facts: Facts) -> str | None:
    rate = job.spec.optimizer.learning_rate
    if not _USUAL_RATE < rate <= _HIGHEST_RATE:
        return None
    return f"{rate:g} is {rate / _USUAL_RATE:.0f} times the highest usual rate for RL, {_USUAL_RATE:g}"


@rule_of_every_training("AdamW's betas lie in [0, 1).", cel="self.spec.optimizer.betas.all(b, b >= 0.0 && b < 1.0)")
def betas(job: RLJob, facts: Facts) -> str | None:
    values = job.spec.optimizer.betas
    return None if all(0 <= beta < 1 for beta in values) else f"betas {list(values)} are not in [0, 1)"


@warning(
    "Warm-up ends before the run does: warmupSteps < maxSteps.",
    cel="self.spec.optimizer.warmupSteps < self.spec.algorithm.maxSteps",
)
def warmup(job: RLJob, facts: Facts) -> str | None:
    warm, steps = job.spec.optimizer.warmup_steps, job.spec.algorithm.max_steps
    return None if warm < steps else f"the learning rate never reaches its peak: {warm} warm-up steps of {steps}"


@warning(
    "There is a checkpoint before the end: checkpoint.intervalSteps ≤ maxSteps.",
    cel="self.spec.checkpoint.intervalSteps <= self.spec.algorithm.maxSteps",
)
def checkpoint_interval(job: RLJob, facts: Facts) -> str | None:
    interval, last = job.spec.checkpoint.interval_steps, job.spec.algorithm.max_steps
    if interval <= last:
        return None
    return f"no checkpoint before the end (every {interval} of {last} steps): a restart begins at step 0"


@rule(
    "What is exported is published: export.intervalSteps is a multiple of weightSync.intervalSteps.",
    cel="!has(self.spec.export) || self.spec.export.intervalSteps % self.spec.weightSync.intervalSteps == 0",
)
def export_between_versions(job: RLJob, facts: Facts) -> str | None:
    export, published = job.spec.export, job.spec.weight_sync.interval_steps
    if export is None or export.interval_steps % published == 0:
        return None
    return f"an export every {export.interval_steps} steps was asked, weights are published every {published}"


@warning(
    "There is an export before the end: export.intervalSteps ≤ maxSteps.",
    cel="!has(self.spec.export) || self.spec.export.intervalSteps <= self.spec.algorithm.maxSteps",
)
def export_interval(job: RLJob, facts: Facts) -> str | None:
    export, last = job.spec.export, job.spec.algorithm.max_steps
    if export is None or export.interval_steps <= last:
        return None
    return f"nothing is exported before the end (every {export.interval_steps} of {last} steps)"


@warning("The engine computes in the trainer's precision.", cel=f"{DTYPE_CEL} == {PRECISION_CEL}")
def dtype_mismatch(job: RLJob, facts: Facts) -> str | None:
    engine, trainer = job.spec.generation.engine.dtype, job.spec.trainer.precision
    if engine == trainer:
        return None
    return f"the engine samples in {engine}, the trainer computes in {trainer}: log-probabilities differ from the start"
