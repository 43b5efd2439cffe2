"""The controller's process: reads the resolved job, builds the parts, runs them."""

import asyncio

import orjson

from areal.errors import ExitCode
from areal.ledger.async_client import AsyncLedger
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan import ResolvedJob, RoleContext
from areal.plan.redis_conf import login_of
from areal.rollout.controller.assemble import ControllerPaths, Parts, serve
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.settings import ControllerSettings
from areal.spec.job import JobSpec
from areal.spec.model_families import VISION
from areal.spec.numbers import BYTES_A_TOKEN
from areal.spec.resolved_algorithm import resolve
from areal.spec.rollout import ENVIRONMENT

FILTERED_BATCHES = 32  # in a row without a group that trains: no chance at any useful difficulty
_WINDOW_BATCHES = 8  # of rows that change places for rounds: the worst of them is this many steps from its own place
_MOST_BLIND = 128  # rows of an evaluation: of fewer, what is seen is caught late
_MOST_WITHOUT_TOOLS = 32  # an episode with tools takes long, and one that is told nothing as long as it may
_LEDGER_RETRY_S = 1.0  # longer absences are a named wait of the link, not a silent retry of the client


def _bytes_per_group(job: ResolvedJob, longest_row: int) -> int:
    """The most that a group's samples take, with routes of their tokens and images of its row, where the model's
    configuration is here to say so."""
    file, algorithm = job.model_path / "config.json", job.spec.algorithm
    config = orjson.loads(file.read_bytes()) if file.is_file() else {}
    routes = job.route_bytes or 0
    images = longest_row if config.get("model_type") in VISION else 0  # its data URIs are longer than the files
    return algorithm.group_size * (job.spec.rollout.max_sample_tokens * (BYTES_A_TOKEN + routes) + images)


def settings_of(
    job: ResolvedJob,
    evaluation_rows: int,
    evaluation_sets: tuple[str, ...] = (),
    longest_row: int = 0,
    blind: tuple[int, ...] = (),
) -> ControllerSettings:
    """The controller's settings from the job's fields; `longest_row` is the bytes of a training row, `blind` are the
    evaluation rows that are answered without images and answers of tools, too."""
    spec = job.spec
    algorithm, rollout, evaluation = spec.algorithm, spec.rollout, spec.evaluation
    return ControllerSettings(
        group_size=algorithm.group_size,
        batch_groups=algorithm.batch_size,
        max_steps=algorithm.max_steps,
        max_staleness=algorithm.max_staleness,
        max_concurrent=rollout.max_concurrent_rollouts,
        ahead=rollout.ahead,
        admission_order=rollout.order == "admission",
        group_deadline_s=rollout.group_deadline_seconds,
        filter_zero_variance=resolve(spec).zero_variance == "filter",
        max_filtered_per_step=rollout.max_filtered_per_step or FILTERED_BATCHES * algorithm.batch_size,
        max_bad_row_share=rollout.max_bad_row_share,
        bytes_per_group=_bytes_per_group(job, longest_row),
        budget_bytes=int(spec.replay.budget_bytes),
        publish_interval=spec.weight_sync.interval_steps,
        evaluation_interval=evaluation.interval_steps if evaluation_rows else 0,
        evaluation_rows=evaluation_rows,
        evaluation_concurrent=evaluation.max_concurrent,
        evaluation_at_start=evaluation.at_start,
        evaluation_failed_are_wrong=evaluation.failed_rows == "wrong",
        evaluation_samples=evaluation.samples,
        evaluation_pass_at=tuple(evaluation.passes),
        evaluation_sets=evaluation_sets,
        evaluation_pins=evaluation.one_version,
        evaluation_blind=blind,
        shared_cards=spec.shared_cards,
        window_groups=_WINDOW_BATCHES * spec.algorithm.batch_size if spec.rollout.rounds == "byHistory" else 0,
        pass_score=spec.dataset.pools.pass_score if spec.dataset.pools is not None else None,
    )


def blind_rows(spec: JobSpec, rows: PreparedRows, count: int) -> tuple[int, ...]:
    """Of the first `count` evaluation rows those that are also answered without images and answers of tools."""
    if not spec.evaluation.blind:
        return ()
    may_call = spec.rollout.agent is not None or spec.rollout.workflow == ENVIRONMENT
    return rows.with_images(count, _MOST_BLIND) or tuple(range(min(count, _MOST_WITHOUT_TOOLS) if may_call else 0))


async def run(ctx: RoleContext) -> int:
    """Run the controller until it is asked to stop."""
    job = ctx.resolved
    layout, spec = job.layout, job.spec
    train, held_out = layout.dataset / "train", layout.dataset / "evaluation"
    in_rounds = spec.rollout.rounds == "byHistory"
    rows = PreparedRows(train, held_out if held_out.exists() else None, spec.seed, spec.dataset.pools, rounds=in_rounds)
    count = rows.evaluation_rows(spec.evaluation.rows)
    column = spec.evaluation.set_column
    sets = rows.evaluation_sets(column, count) if column else ()
    settings = settings_of(job, count, sets, rows.longest, blind_rows(spec, rows, count))
    metrics = RoleMetrics("controller", job.job.metadata.name)
    metrics.serve(ctx.metrics_port, ctx.bind)
    login = login_of(job, "controller")
    async with AsyncLedger(
        login.address, job.uid, username=login.username, password=login.password, retry_for_s=_LEDGER_RETRY_S
    ) as ledger:
        parts = Parts(
            job=job.job.metadata.name,
            access=ctx.access,
            settings=settings,
            paths=ControllerPaths(layout.fences, layout.journal, layout.journal.parent, layout.evaluations),
            rows=rows,
            ledger=ledger,
            metrics=metrics,
            waits=WaitRegistry("controller"),
            progress=ctx.progress,
            job_digest=job.digest,
            host=ctx.bind,
            patience_s=job.patience_s,
            traces=ctx.traces,
        )
        renewal = asyncio.create_task(ledger.keep_certificate_fresh())
        await serve(parts, ctx.port, ctx.stop)
        renewal.cancel()
    return ExitCode.DONE
