"""Numbers that follow from a job: bytes, steps, when things happen. Pure arithmetic, each formula once."""

from areal.spec.job import RLJob

BYTES_A_TOKEN = 8  # id, log-probability and mask of a token as the ledger holds them, rounded up
BUDGET_SHARE = 0.8  # of the budget; beyond it a checkpoint is forced, which frees what it holds


def samples_a_step(job: RLJob) -> int:
    return job.spec.algorithm.batch_size * job.spec.algorithm.group_size


def tokens_a_step(job: RLJob) -> int:
    """The most tokens that one step trains on, prompts included."""
    return samples_a_step(job) * job.spec.rollout.max_sample_tokens


def bytes_a_step(job: RLJob, routes: int = 0, images: int = 0) -> int:
    """The most bytes that the samples of one step take in the ledger, with so many a token of the model's routes, and
    so many a sample of images."""
    algorithm = job.spec.algorithm
    return tokens_a_step(job) * (BYTES_A_TOKEN + routes) + algorithm.batch_size * algorithm.group_size * images


def ahead(job: RLJob) -> int:
    """Batches that generation may be ahead of the newest weights, as asked or by default."""
    spec = job.spec
    return lead(spec.rollout.order, spec.rollout.ahead, spec.algorithm.max_staleness, spec.weight_sync.interval_steps)


def lead(order: str, asked: int | None, bound: int, interval: int) -> int:
    """`ahead` by the fields of a job: its order, what it asks for, maxStaleness and weightSync.intervalSteps."""
    if order == "admission":
        return bound
    return min(bound, max(-(-bound // 2), interval - 1)) if asked is None else asked


def bytes_in_flight(job: RLJob, routes: int = 0, images: int = 0) -> int:
    """The most bytes that must fit at once: `ahead` + 1 steps admitted, and one being trained."""
    return (ahead(job) + 2) * bytes_a_step(job, routes, images)


def groups_in_flight(job: RLJob) -> int:
    """The most groups that are admitted beyond the newest version's batch."""
    return job.spec.algorithm.batch_size * (ahead(job) + 1)


def forced_checkpoint_every(job: RLJob, routes: int = 0, images: int = 0) -> int:
    """After how many steps 80 % of the budget are full if every sample has the greatest length."""
    steps_that_fit = int(job.spec.replay.budget_bytes * BUDGET_SHARE) // bytes_a_step(job, routes, images)
    return max(1, steps_that_fit - (ahead(job) + 1))


def evaluated_versions(job: RLJob) -> list[int]:
    """The versions that are evaluated; empty without held-out rows. The last version always is."""
    if job.spec.dataset.evaluation is None:
        return []
    evaluation, last = job.spec.evaluation, job.spec.algorithm.max_steps
    versions = set(range(evaluation.interval_steps, last + 1, evaluation.interval_steps)) | {last}
    return sorted(versions | {0} if evaluation.at_start else versions)


def exports_kept(job: RLJob) -> int:
    """How many exported models are on disk at most: the one being written, the newest, and where there are scores the
    best and as many again that wait for theirs."""
    export = job.spec.export
    if export is None:
        return 0
    return export.keep + 1 + (export.keep + 1 if job.spec.dataset.evaluation is not None else 0)
