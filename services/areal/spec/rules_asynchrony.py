"""Rules of the asynchronous loop: gate, staleness, publication, bytes."""

from areal.spec import numbers
from areal.spec.job import RLJob
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import named, resolve
from areal.spec.rules import Facts, rule, warning

# In tokens, and with the factors 8 bytes and 80 % cancelled: the greatest values of all fields stay below 2⁶³.
_STEP_TOKENS_CEL = "self.spec.algorithm.batchSize * self.spec.algorithm.groupSize * self.spec.rollout.maxSampleTokens"
_BUDGET_CEL = "int(quantity(string(self.spec.replay.budgetBytes)).asApproximateFloat() + 0.5) / 10"
_BOUND_CEL, _INTERVAL_CEL = "self.spec.algorithm.maxStaleness", "self.spec.weightSync.intervalSteps"
_HALF_CEL = f"({_BOUND_CEL} + 1) / 2"
_AT_LEAST_CEL = f"({_HALF_CEL} > {_INTERVAL_CEL} - 1 ? {_HALF_CEL} : {_INTERVAL_CEL} - 1)"
_AHEAD_CEL = (
    f"(self.spec.rollout.order == 'admission' ? {_BOUND_CEL} : "
    "has(self.spec.rollout.ahead) ? self.spec.rollout.ahead : "
    f"{_AT_LEAST_CEL} > {_BOUND_CEL} ? {_BOUND_CEL} : {_AT_LEAST_CEL})"
)
_IN_BUDGET_CEL = f"({_AHEAD_CEL} + 2) * {_STEP_TOKENS_CEL} <= {_BUDGET_CEL}"


@rule(
    "A whole batch can be generated at once: maxConcurrentRollouts ≥ batchSize.",
    cel="self.spec.rollout.maxConcurrentRollouts >= self.spec.algorithm.batchSize",
)
def batch_cannot_fill(job: RLJob, facts: Facts) -> str | None:
    algorithm, most = job.spec.algorithm, job.spec.rollout.max_concurrent_rollouts
    if most >= algorithm.batch_size:
        return None
    waves = -(-algorithm.batch_size // most)
    return (
        f"a batch of {algorithm.batch_size} groups can't fill: only {most} are generated at once, so a step would wait "
        f"for {waves} rounds, each as long as its longest answer "
        f"(batchSize·(ahead+1) = {algorithm.batch_size}·{numbers.ahead(job) + 1} = "
        f"{numbers.groups_in_flight(job)} groups may be in flight)"
    )


@warning(
    "maxConcurrentRollouts is no more than what the lead admits: batchSize·(ahead+1).",
    cel=None,  # only of a value that was given, and a server can't tell it from a default
)
def concurrency_unused(job: RLJob, facts: Facts) -> str | None:
    algorithm, most = job.spec.algorithm, job.spec.rollout.max_concurrent_rollouts
    admitted = numbers.groups_in_flight(job)
    if most <= admitted or "max_concurrent_rollouts" not in job.spec.rollout.model_fields_set:
        return None
    return (
        f"{most} groups can never be in flight: the lead admits batchSize·(ahead+1) = "
        f"{algorithm.batch_size}·{numbers.ahead(job) + 1} = {admitted}"
    )


@rule(
    "Rounds of rows with alike answers are for a synchronous loop, whose rows no pools leave out.",
    cel=(f"self.spec.rollout.rounds == 'bySeed' || ({_BOUND_CEL} == 0 && !has(self.spec.dataset.pools))"),
)
def rounds_of_a_synchronous_loop(job: RLJob, facts: Facts) -> str | None:
    if job.spec.rollout.rounds == "bySeed":
        return None
    if job.spec.algorithm.max_staleness:
        return "with maxStaleness above 0 batches are of whatever groups are complete, not of those that came together"
    return "pools decide which row comes next, too" if job.spec.dataset.pools is not None else None


@rule(
    "Tokens older than one version are trained with the decoupled correction only, or by DPPO.",
    cel=(
        "self.spec.algorithm.maxStaleness <= 1 || "
        "(self.spec.algorithm.advanced.decoupled && self.spec.algorithm.advanced.proximal != 'behaviour') || "
        f"{named('surrogate')} == 'dppo' || (has(self.spec.research) && self.spec.research.allowStale)"
    ),
)
def stale_without_decoupled(job: RLJob, facts: Facts) -> str | None:
    return None if job.spec.research.allow_stale else _uncorrected(job)


@warning(
    "Tokens older than one version are trained without the decoupled correction where a study asks for it.",
    cel=None,  # it is allowed
)
def stale_for_research(job: RLJob, facts: Facts) -> str | None:
    return _uncorrected(job) if job.spec.research.allow_stale else None


def _uncorrected(job: RLJob) -> str | None:
    algorithm = job.spec.algorithm
    meant = resolve(job.spec)
    if algorithm.max_staleness <= 1 or meant.proximal != "behaviour" or meant.surrogate == "dppo":
        return None
    return (
        f"η = {algorithm.max_staleness} > 1 without decoupled correction: the clip would be centred on policies up to "
        f"{algorithm.max_staleness} versions old, and learning degrades (arXiv 2505.24298, table 2)"
    )


@rule(
    "Generation is no further ahead than a token may be old: ahead ≤ maxStaleness, and the same in admission order.",
    cel=(
        "!has(self.spec.rollout.ahead) || self.spec.rollout.ahead == self.spec.algorithm.maxStaleness || "
        "(self.spec.rollout.order != 'admission' && self.spec.rollout.ahead < self.spec.algorithm.maxStaleness)"
    ),
)
def ahead_over_bound(job: RLJob, facts: Facts) -> str | None:
    lead, bound, order = job.spec.rollout.ahead, job.spec.algorithm.max_staleness, job.spec.rollout.order
    if lead is None or lead == bound or (lead < bound and order != "admission"):
        return None
    if lead > bound:
        return f"groups {lead} batches ahead would be trained {lead} versions old, and {bound} is the most"
    return f"in admission order the lead is maxStaleness = {bound}, not {lead}"


@rule(
    "Weights are published before generation may need them: intervalSteps ≤ ahead + 1.",
    cel=f"{_INTERVAL_CEL} <= {_AHEAD_CEL} + 1",
)
def publish_interval(job: RLJob, facts: Facts) -> str | None:
    interval, lead = job.spec.weight_sync.interval_steps, numbers.ahead(job)
    if interval <= lead + 1:
        return None
    return (
        f"the job would stand still: with a publication every {interval} steps, generation may run "
        f"ahead + 1 = {lead + 1} steps ahead of the served version, the next version needs {interval}"
    )


@rule(
    "A process group carries whole weights, no adapters.",
    cel="self.spec.weightSync.mode != 'Group' || !has(self.spec.trainer.lora)",
)
def group_mode(job: RLJob, facts: Facts) -> str | None:
    if job.spec.weight_sync.mode != "Group" or job.spec.trainer.lora is None:
        return None
    return "adapters are small and are loaded beside each other: they are read from the volume"


@rule("The samples of ahead+2 steps fit into 80 % of the budget.", cel=_IN_BUDGET_CEL)
def bytes_over_budget(job: RLJob, facts: Facts) -> str | None:
    algorithm, tokens, budget = job.spec.algorithm, job.spec.rollout.max_sample_tokens, job.spec.replay.budget_bytes
    each, images = numbers.BYTES_A_TOKEN + facts.model_route_bytes, facts.image_bytes
    needed = numbers.bytes_in_flight(job, facts.model_route_bytes, images)
    allowed = int(budget * numbers.BUDGET_SHARE)
    if needed <= allowed:
        return None
    named, counted = (
        ("(maxSampleTokens·{} + {} of images)", "({}·{} + {})") if images else ("maxSampleTokens·{}", "{}·{}")
    )
    groups = f"{numbers.ahead(job) + 2}·{algorithm.batch_size}·{algorithm.group_size}"
    return (
        f"samples in flight can take (ahead+2)·batchSize·groupSize·{named.format(each, images)} B = "
        f"{groups}·{counted.format(tokens, each, images)} = "
        f"{show_bytes(needed)}, more than 80 % of {show_bytes(budget)} = {show_bytes(allowed)}"
    )


@warning(
    "The budget holds the samples between two checkpoints.",
    cel=(
        f"(self.spec.checkpoint.intervalSteps + {_AHEAD_CEL} + 1) * {_STEP_TOKENS_CEL} "
        f"<= {_BUDGET_CEL} || !({_IN_BUDGET_CEL})"
    ),
)
def checkpoint_forced(job: RLJob, facts: Facts) -> str | None:
    each, wanted = (facts.model_route_bytes, facts.image_bytes), job.spec.checkpoint.interval_steps
    every = numbers.forced_checkpoint_every(job, *each)
    if every >= wanted or bytes_over_budget.broken(job, facts):
        return None
    return (
        f"a checkpoint every {wanted} steps was asked, but samples of the longest kind take "
        f"{show_bytes(numbers.bytes_a_step(job, *each))} a step and fill "
        f"80 % of {show_bytes(job.spec.replay.budget_bytes)} every {every} steps, when one is forced"
    )


@rule(
    "A group has time for at least one score: groupDeadlineSeconds > reward.deadlineSeconds.",
    cel="self.spec.rollout.groupDeadlineSeconds > self.spec.reward.deadlineSeconds",
)
def deadline_too_short(job: RLJob, facts: Facts) -> str | None:
    group, score = job.spec.rollout.group_deadline_seconds, job.spec.reward.deadline_seconds
    if group > score:
        return None
    return f"a group ends after {group:g} s, but one score alone may take {score:g} s"


@warning(
    "Filtering may replace at least one whole batch before the run counts as stalled.",
    cel=(
        f"{named('zero_variance')} != 'filter' || !has(self.spec.rollout.maxFilteredPerStep) || "
        "self.spec.rollout.maxFilteredPerStep >= self.spec.algorithm.batchSize"
    ),
)
def filter_limit(job: RLJob, facts: Facts) -> str | None:
    algorithm, limit = job.spec.algorithm, job.spec.rollout.max_filtered_per_step
    if resolve(job.spec).zero_variance != "filter" or limit is None or limit >= algorithm.batch_size:
        return None
    return f"{limit} filtered groups stall the run, fewer than one batch of {algorithm.batch_size}"
