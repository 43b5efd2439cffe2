"""Plain-language explanation of a job, in numbers and sentences."""

from areal.spec import numbers
from areal.spec.job import RLJob
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import needs_scores, resolve, whole_batches_for
from areal.spec.supervised import FixedRowsBlock

_FEW_VERSIONS = 6


def explain(job: RLJob, *, scores_itself: bool = False) -> list[tuple[str, str]]:
    """Lines for people: a subject and a sentence each. `scores_itself`: the workflow does, or its agent."""
    spec = job.spec
    if spec.supervised is not None:
        return _supervised(job, spec.supervised)
    algorithm, rollout, trainer = spec.algorithm, spec.rollout, spec.trainer
    made = f"{algorithm.batch_size} groups × {algorithm.group_size} samples = {numbers.samples_a_step(job)} samples"
    told = {
        "a step": f"{made}, at most {numbers.tokens_a_step(job):,} tokens ({rollout.max_sample_tokens} a sample)",
        "the run": f"{algorithm.max_steps} steps, {algorithm.max_steps * algorithm.batch_size:,} groups, "
        f"{algorithm.max_steps * numbers.samples_a_step(job):,} samples",
        "staleness": _staleness(job),
        "in flight": f"the lead admits {numbers.groups_in_flight(job)} groups beyond the newest version, "
        f"maxConcurrentRollouts lets {rollout.max_concurrent_rollouts} be generated at once",
        "samples kept": f"at most {show_bytes(numbers.bytes_a_step(job))} a step; {numbers.ahead(job) + 2} steps = "
        f"{show_bytes(numbers.bytes_in_flight(job))} of {show_bytes(spec.replay.budget_bytes)} "
        f"({numbers.bytes_in_flight(job) / spec.replay.budget_bytes:.2%})",
        "checkpoints": _checkpoints(job),
        "updates": f"{algorithm.mini_batches} a step"
        + (", so u = π_θ/π_prox = 1 and the clip is idle" if _on_policy(job) else "")
        + f"; micro-batches of up to {trainer.micro_batch_tokens:,} tokens on {trainer.world_size} process"
        + ("es" if trainer.world_size > 1 else ""),
        "algorithm": f"{algorithm.name}: {resolve(spec).shown}",
        **_teacher(job),
        "learning rate": _learning_rate(job),
        "weights": f"published every {_every(spec.weight_sync.interval_steps, 'version')}, and always the last; "
        + ("sent to servers by a process group" if spec.weights_by_group else "read from the run's directory")
        + (" over the network, by servers that mount nothing" if spec.servers_fetch else ""),
        **_exports(job),
        "evaluation": _evaluation(job),
        **_programs(job),
        "processes": _processes(job, scores_itself),
    }
    return list(told.items())


def _supervised(job: RLJob, block: FixedRowsBlock) -> list[tuple[str, str]]:
    spec = job.spec
    unit = "pairs" if spec.has_pairs else "rows"
    length = _every(block.max_steps, "step") if block.max_steps else f"each of the {unit} {block.epochs or 1}×"
    held_out = spec.dataset.evaluation is not None
    figure = "the pair accuracy" if spec.reward_model is not None else "the loss"
    rows = spec.evaluation.rows
    student = spec.distillation
    told = {
        "training": f"{spec.training}: on fixed {unit}; nothing is generated or scored",
        **({"teacher": f"{student.teacher.path}, divergence {student.divergence}"} if student is not None else {}),
        "a step": f"{block.batch_size} {unit} of at most {block.max_tokens} tokens, in an order drawn from the seed",
        "the run": length,
        "learning rate": _learning_rate(job),
        "checkpoints": f"every {_every(spec.checkpoint.interval_steps, 'step')}, the last {spec.checkpoint.keep} kept",
        **_exports(job),
        "evaluation": f"{figure} on {rows if rows is not None else 'all'} held-out {unit} every "
        f"{_every(spec.evaluation.interval_steps, 'step')}, and of the last version"
        if held_out
        else "none: the job has no held-out rows",
        "processes": f"{spec.trainer.world_size} trainer",
    }
    return list(told.items())


def _teacher(job: RLJob) -> dict[str, str]:
    """Of a policy that is taught on its own samples."""
    teacher = job.spec.algorithm.teacher
    if teacher is None:
        return {}
    rewards = "beside the rewards' advantages" if needs_scores(job.spec) else "and nothing of rewards"
    said = f"each token's advantage has −{teacher.coefficient:g}·(log π_prox − log teacher), {rewards}"
    place = "frozen beside the policy" if teacher.endpoint is None else f"served at {teacher.endpoint}"
    return {"teacher": f"{teacher.path}, {place}; {said}"}


def _staleness(job: RLJob) -> str:
    bound, lead = job.spec.algorithm.max_staleness, numbers.ahead(job)
    if bound == 0:
        waits = whole_batches_for(job.spec)
        how = f"a step waits for its whole batch ({waits})" if waits else "groups are trained as they become complete"
        return f"maxStaleness 0: synchronous, every token is made by the version that trains it; {how}"
    given = "" if job.spec.rollout.ahead is not None or job.spec.rollout.order == "admission" else " (by default)"
    order = "whatever is complete, the oldest first" if job.spec.rollout.order == "deadline" else "admission order"
    return (
        (
            f"maxStaleness {bound}: no token is trained more than {_every(bound, 'version')} old; ahead {lead}{given}: "
            f"generation runs up to {_every(lead + 1, 'step')} ahead, the mean age; batches are of {order}; a "
            f"step takes 1/{bound + 1} of the longest answer's time alone at least, which ahead doesn't move"
        )
        .replace("each step", "1 step")
        .replace("each version", "1 version")
    )


def _on_policy(job: RLJob) -> bool:
    """Whether the only update is centred on the very weights that it changes."""
    return job.spec.algorithm.mini_batches == 1 and resolve(job.spec).proximal in ("trainingPass", "recompute")


def _every(count: int, unit: str) -> str:
    return unit if count == 1 else f"{count} {unit}s"


def _checkpoints(job: RLJob) -> str:
    wanted, forced = job.spec.checkpoint.interval_steps, numbers.forced_checkpoint_every(job)
    said = f"every {_every(wanted, 'step')}, the last {job.spec.checkpoint.keep} kept"
    if forced < wanted:
        return f"{said}; with samples of full length the budget forces one every {_every(forced, 'step')}"
    return f"{said}; samples of full length would fill replay.budgetBytes after {_every(forced, 'step')}"


def _learning_rate(job: RLJob) -> str:
    rate, optimizer = job.spec.optimizer.learning_rate, job.spec.optimizer
    peak = f"{rate:g} after {_every(optimizer.warmup_steps, 'step')} of warm-up"
    if optimizer.lr_schedule == "constant":
        return f"{peak}, then constant"
    return f"{peak}, then {optimizer.lr_schedule} to {rate * optimizer.min_lr_ratio:g}"


def _evaluation(job: RLJob) -> str:
    versions = numbers.evaluated_versions(job)
    if not versions:
        return "none: the job has no held-out rows"
    shown = [str(version) for version in versions]
    if len(shown) > _FEW_VERSIONS:
        shown = [*shown[:3], "…", *shown[-2:]]
    rows = job.spec.evaluation.rows
    wanted = job.spec.evaluation
    sampled = f" and {wanted.samples} samples of each" if wanted.samples else ""
    kept = "; servers keep the version until it has ended" if wanted.one_version else ""
    return f"greedy on {rows if rows is not None else 'all'} rows{sampled} at versions {', '.join(shown)}{kept}"


def _exports(job: RLJob) -> dict[str, str]:
    export = job.spec.export
    if export is None:
        return {}
    best = ", and the best on held-out rows" if job.spec.dataset.evaluation is not None else ""
    return {"exports": f"a model every {_every(export.interval_steps, 'step')}, the last {export.keep} kept{best}"}


def _programs(job: RLJob) -> dict[str, str]:
    if job.spec.reward.verifier != "code":
        return {}
    code = job.spec.reward.programs
    where = (
        "WITHOUT a sandbox where there is none (T0)" if code.min_tier == "T0" else f"in tier {code.min_tier} or above"
    )
    worth = "1 when every test passes, else 0" if code.scoring == "all_pass" else "the share of tests that pass"
    needs = f", may use {', '.join(code.needs)}" if code.needs else ""
    return {"programs": f"{code.language}, run {where}{needs}; {worth}; at most {code.total_seconds:g} s an answer"}


def _processes(job: RLJob, scores_itself: bool) -> str:
    spec = job.spec
    return (
        f"{spec.generation.replicas} generation ({spec.generation.engine.type}), {spec.rollout.workers} worker, "
        f"{spec.trainer.world_size} trainer; one controller, one Redis"
        + ("" if scores_itself else ", one reward service")
    )
