"""From the resolved job's file to the trainer's settings."""

from __future__ import annotations

from pathlib import Path

from areal.errors import ConfigError
from areal.plan.resolved import ResolvedJob
from areal.plan.store import login_of

from areal_trainer.settings import Paths, TrainerSettings
from areal_trainer.trainings.desk import SupervisedSettings


def settings_of(job: Path) -> TrainerSettings:
    """Read `resolved.json` and the secrets that it names."""
    resolved = ResolvedJob.load(job)
    login = login_of(resolved, "trainer")
    return TrainerSettings(
        name=resolved.job.metadata.name,
        uid=resolved.uid,
        spec=resolved.spec,
        paths=_paths(resolved),
        controller=resolved.endpoints.controller,
        redis=login.address,
        redis_user=login.username,
        redis_password=login.password,
        token=_secret(resolved.token_path),
        bind=resolved.bind,
        advertise=resolved.endpoints.trainer,
        patience_s=resolved.patience_s,
    )


def is_supervised(job: Path) -> bool:
    """Whether a resolved job trains on fixed rows."""
    return not ResolvedJob.load(job).job.spec.is_rl


def supervised_settings_of(job: Path) -> SupervisedSettings:
    """The same of a training on fixed rows, which has no store and no controller."""
    resolved = ResolvedJob.load(job)
    layout = resolved.layout
    return SupervisedSettings(
        name=resolved.job.metadata.name,
        spec=resolved.spec,
        paths=_paths(resolved),
        dataset=layout.dataset,
        cache=layout.root / "cache",
        token=_secret(resolved.token_path),
        bind=resolved.bind,
    )


def _paths(resolved: ResolvedJob) -> Paths:
    layout = resolved.layout
    return Paths(
        start_model=resolved.model_path,
        tokenizer=resolved.tokenizer_path,
        recipe=resolved.recipe_path,
        hooks=resolved.hooks_path,
        checkpoints=layout.checkpoints,
        fences=layout.fences,
        evidence=layout.evidence,
        weights=layout.weights,
        metrics=layout.metrics,
        tensorboard=layout.tensorboard,
        recording=layout.recording,
        tokens=layout.tokens,
        model=layout.model,
        exports=layout.exports,
        evaluations=layout.evaluations,
        teacher=resolved.teacher_path,
    )


def _secret(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}", fix="start the run with `areal run`") from error
