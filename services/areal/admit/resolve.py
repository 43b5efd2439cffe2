"""Resolver of a job for this machine: its files, its ports, and whether its directory is free, or of the same job.

Reads the disk to find files; writes nothing (`write_run` does) and starts nothing.
"""

import secrets
from pathlib import Path
from typing import Any

from areal.admit.models import check_model, check_tokenizer, served_elsewhere
from areal.admit.recipe_probe import defines
from areal.admit.sources import Sources, sources_of
from areal.errors import ConfigError
from areal.plan.cluster_names import Role
from areal.plan.layout import RunLayout
from areal.plan.resolved import Endpoints, ResolvedJob, Verifier
from areal.plan.role_specs import redis_logins
from areal.plan.roles import PortAllocator, assign_ports, free_ports, role_instances
from areal.spec.job import RLJob
from areal.spec.locality import remote_models

_HOST = "127.0.0.1"


def resolve(
    job: RLJob,
    *,
    run_dir: Path,
    base_dir: Path,
    ports: PortAllocator = free_ports,
    resume: bool = False,
    uid: str | None = None,
) -> ResolvedJob:
    """The job with its files found, its addresses chosen and its roles known.

    Args:
        job: a job that passed `check`.
        run_dir: where the run will keep everything; must be empty or absent, or a run of the same job with `resume`.
        base_dir: the job file's directory; relative paths are looked for below the current directory, then below it.
        ports: gives free ports.
        resume: continue the run in `run_dir`: its identity is kept, its ports are new.
        uid: of the run; made up when None.

    Raises:
        ConfigError: a file is missing (naming every place tried), the directory is occupied, or a resumed job differs.
    """
    run_dir = run_dir.absolute()
    earlier = None
    if resume:
        earlier = ResolvedJob.load(RunLayout(run_dir).resolved)
        refuse_another_job(earlier.job, job)
    else:
        _refuse_occupied(run_dir)
    sources = sources_of(job, base_dir, strict=True)
    verifier = verifier_of(job, sources.recipe)
    instances = role_instances(job, verifier)
    table = assign_ports(instances, ports)
    layout = RunLayout(run_dir)
    gateways = [instance.name for instance in instances if instance.role is Role.GATEWAY]

    def address(row: str, purpose: str = "grpc") -> str | None:
        return f"{_HOST}:{table[row][purpose]}" if row in table else None

    return ResolvedJob(
        job=job,
        uid=earlier.uid if earlier else uid or f"{job.metadata.name}-{secrets.token_hex(4)}",
        digest=job.digest(),
        run_dir=run_dir,
        recipe_source=sources.recipe,
        recipe_path=layout.recipe / sources.recipe.name if sources.recipe else None,
        hooks_path=sources.hooks,
        dataset=sources.dataset,
        **_models(job, sources, earlier),
        verifier=verifier,
        endpoints=Endpoints(
            controller=address("controller") or "",
            redis=address("redis", "main"),
            reward=address("reward") or address("reward-model"),
            reward_custom=address("reward-custom"),
            boxes=address("boxes"),
            weights=address("weights"),
            trainer=address("trainer") if job.spec.weights_by_group else None,
            gateways=[f"{_HOST}:{table[row]['grpc']}" for row in gateways],
            gateway_urls=[f"http://{_HOST}:{table[row]['http']}" for row in gateways],
        ),
        redis_users={user: layout.redis_password(user) for user in redis_logins().values() if "redis" in table},
        ports=table,
    )


def verifier_of(job: RLJob, recipe: Path | None) -> Verifier | None:
    """Who scores: what the job names, else the recipe's `reward`, else nobody but the workflow itself."""
    if not job.spec.is_rl:
        return None
    if job.spec.reward.verifier is not None:
        return job.spec.reward.verifier
    return "custom" if recipe is not None and defines(recipe, "reward") else None


def _models(job: RLJob, sources: Sources, earlier: ResolvedJob | None) -> dict[str, Any]:
    """Where the models are; a resumed run reads fetched ones from where it read them before."""
    spec, fields = job.spec, ("spec.model.uri", job.spec.teacher_field, "spec.reward.model.path")
    fetched = {field: uri for field, uri in remote_models(spec).items() if field in fields}
    kept = fetched if earlier is not None else {}
    model = earlier.model_path if earlier and "spec.model.uri" in kept else _start_model(job, sources)
    found: dict[str, Path | None] = {"teacher_path": sources.teacher, "reward_model_path": sources.reward_model}
    others = {"teacher_path": (spec.teacher_field, "the teacher"), "reward_model_path": (fields[2], "the reward model")}
    for name, (field, what) in others.items():
        if earlier is not None and field in kept:
            found[name] = getattr(earlier, name)
        elif (place := found[name]) is not None:
            weights = name != "teacher_path" or not served_elsewhere(job)
            check_tokenizer(check_model(place, job.where(field), weights=weights), job.where(field))
        elif field in fetched and (name != "reward_model_path" or spec.reward.verifier == "model"):
            raise ConfigError(
                f"{job.where(field)}: {what} {fetched[field]} isn't on this machine",
                fix="Start it with `areal run`, which downloads it.",
            )
    named = "spec.model.tokenizer" if spec.model.tokenizer else "spec.model.path"
    tokenizer = sources.tokenizer if spec.model.tokenizer else model
    assert tokenizer is not None  # `sources_of` refused one that isn't there
    return {**found, "model_path": model, "tokenizer_path": check_tokenizer(tokenizer, job.where(named))}


def _start_model(job: RLJob, sources: Sources) -> Path:
    if sources.model is None:
        raise ConfigError(
            f"{job.where('spec.model')}: model.uri {job.spec.model.uri!r} is no directory of this machine",
            fix="Download the model and name its directory in model.path.",
        )
    return check_model(sources.model, job.where("spec.model.path" if job.spec.model.path else "spec.model.uri"))


def _refuse_occupied(run_dir: Path) -> None:
    """Raise ConfigError unless a new run may start in `run_dir`."""
    layout = RunLayout(run_dir)
    if not run_dir.exists():
        return
    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir} is a file, not a run directory", fix="Choose another one with --run-dir.")
    if layout.resolved.exists():
        raise ConfigError(
            f"{run_dir} already holds a run",
            fix="Continue it with --resume, replace it with --fresh, or choose another directory with --run-dir.",
        )
    ours = _before_the_first_start(layout)
    strange = sorted(path.name for path in run_dir.iterdir() if path.name not in ours)
    if strange:
        raise ConfigError(
            f"{run_dir} is not empty and no run: it holds {', '.join(strange[:5])}",
            fix="Choose another directory with --run-dir, or move those files away.",
        )


def _before_the_first_start(layout: RunLayout) -> set[str]:
    """What a start that was cut off before `resolved.json` may have left behind, and `areal prepare` makes."""
    paths = (
        layout.token, layout.access, layout.redis, layout.recipe, layout.dataset, layout.logs, layout.weights,
        layout.checkpoints, layout.fences, layout.journal.parent, layout.evidence, layout.trajectories,
        layout.recording, layout.tokens, layout.tensorboard,
    )  # fmt: skip
    names = {path.name for path in paths}
    return names | {f"{layout.token.name}.part", f"{layout.resolved.name}.part"}


def refuse_another_job(earlier: RLJob, now: RLJob) -> None:
    """Raise ConfigError with the differences when `now` isn't the run that `earlier` was.

    Live fields (steps, staleness, concurrency) and those that a restart may change (replicas, intervals, budgets) are
    no part of a run's identity.
    """
    before, after = earlier.identity(), now.identity()
    changed = [field for field in {**before, **after} if before.get(field) != after.get(field)]
    if not changed:
        return
    lines = "".join(
        f"\n  {field}: was {_show(before.get(field))}, now {_show(after.get(field))}"
        + (f" ({now.where(field)})" if now.where(field) else "")
        for field in changed
    )
    raise ConfigError(
        f"this is another job than the one that was started here:{lines}",
        fix="Take these changes back to resume, or start a new run with --fresh or another --run-dir.",
    )


def _show(value: Any) -> str:
    return "not given" if value is None else repr(value)
