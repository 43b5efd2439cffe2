"""From the resolved job's file to the trainer's settings."""

from __future__ import annotations

from pathlib import Path

from areal.errors import ConfigError
from areal.plan.resolved import ResolvedJob
from areal.plan.store import login_of

from areal_trainer.settings import RowsSettings, TrainerPaths, TrainerSettings


def settings_of(job: Path) -> TrainerSettings | RowsSettings:
    """Read `resolved.json` and the secrets that it names."""
    resolved = ResolvedJob.load(job)
    if not resolved.job.spec.is_rl:
        return RowsSettings(
            name=resolved.job.metadata.name,
            spec=resolved.spec,
            paths=_paths(resolved),
            dataset=resolved.layout.dataset,
            cache=resolved.layout.root / "cache",
            token=_secret(resolved.token_path),
            bind=resolved.bind,
        )
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


def _paths(resolved: ResolvedJob) -> TrainerPaths:
    layout = resolved.layout
    return TrainerPaths(
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
