"""Trainer settings, read once from the resolved job."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areal.dataflow.builtin import needs_of
from areal.errors import ConfigError, DataError
from areal.ledger.consumer import ConsumerPolicy
from areal.method_access import NOBODY, MethodAccess
from areal.plan.access import access_of, token_of
from areal.plan.cluster_names import Role
from areal.plan.redis_conf import login_of
from areal.plan.resolved import ResolvedJob
from areal.spec.job import JobSpec
from areal.spec.resolved_algorithm import resolve, whole_batches_for
from areal.weights.adapter import AdapterConfig
from areal.weights.exports import Exports
from areal.weights.stage import memory_directory
from areal.workflow.recipe import load_recipe

from areal_trainer.actor import ActorOptions
from areal_trainer.engine.engine import ModelOptions
from areal_trainer.options import adamw_options, advantage_options, objective_options, schedule_of


@dataclass(frozen=True)
class TrainerPaths:
    """Where the run keeps what the trainer reads and writes."""

    start_model: Path
    tokenizer: Path
    recipe: Path | None
    hooks: Path | None
    checkpoints: Path
    fences: Path
    cards: Path
    evidence: Path
    weights: Path
    metrics: Path
    tensorboard: Path | None
    recording: Path
    tokens: Path
    model: Path
    exports: Path
    evaluations: Path
    teacher: Path | None = None
    handed: Path | None = None  # in memory, where versions are handed to servers beside the trainer

    def exports_of(self, spec: JobSpec) -> Exports | None:
        """The run's exports, where the job asks for them."""
        wanted = spec.export
        if wanted is None:
            return None
        return Exports(
            self.exports,
            interval=wanted.interval_steps,
            keep=wanted.keep,
            evaluations=self.evaluations,
            metric=wanted.metric,
        )


@dataclass(frozen=True)
class TrainerSettings:
    """One trainer."""

    name: str
    uid: str
    spec: JobSpec
    paths: TrainerPaths
    controller: str
    redis: str
    redis_password: str | None
    token: str
    redis_user: str | None = None
    access: MethodAccess | str = NOBODY  # who may call it
    bind: str = "127.0.0.1"  # the address that this role's servers listen on
    advertise: str | None = None  # host and port under which servers reach rank 0, where it sends them weights
    outage_s: float = 120.0  # how long another role may be away
    patience_s: float = 60.0  # how long it may take to be there for the first time
    in_pods: bool = False  # with a network between it and the servers

    def __post_init__(self) -> None:
        if self.spec.rollout.sampling.temperature <= 0:
            raise ConfigError(
                "greedy answers (temperature 0) have no probability to learn from",
                fix="set rollout.sampling.temperature above 0",
            )

    @property
    def consumer(self) -> ConsumerPolicy:
        algorithm = self.spec.algorithm
        return ConsumerPolicy(
            batch_groups=algorithm.batch_size,
            group_size=algorithm.group_size,
            max_steps=algorithm.max_steps,
            publish_interval=self.spec.weight_sync.interval_steps,
            checkpoint_interval=self.spec.checkpoint.interval_steps,
        )

    @property
    def engine(self) -> ModelOptions:
        temperature = self.spec.rollout.sampling.temperature
        return replace(model_options(self.spec), temperature=temperature, replay=self.spec.replays_routes)

    @property
    def adapter(self) -> AdapterConfig | None:
        """The adapter that is trained instead of all weights."""
        return adapter_of(self.spec)

    @property
    def deltas(self) -> bool:
        """Whether a version may be published as changes from the one before."""
        return self.spec.publishes_deltas(in_pods=self.in_pods)

    @property
    def critic_engine(self) -> ModelOptions:
        """The critic's numerics: the policy's, but for the weight decay; all its weights are trained."""
        critic, usual = resolve(self.spec).critic, replace(self.engine, adapter=None, router=(0.0, 0.0))
        if critic is None:
            return usual
        return replace(usual, optimizer=replace(usual.optimizer, weight_decay=critic.weight_decay))

    @property
    def teacher_engine(self) -> ModelOptions:
        """The teacher's numerics: the policy's; it is whole, and never trained."""
        return replace(self.engine, adapter=None, replay=False, router=(0.0, 0.0))

    @property
    def needs_reference(self) -> bool:
        """Whether the start model stays beside the policy, for a KL divergence."""
        return resolve(self.spec).kl is not None

    @property
    def actor(self) -> ActorOptions:
        algorithm, trainer, needs = self.spec.algorithm, self.spec.trainer, needs_of(self.spec)
        return ActorOptions(
            objective=objective_options(self.spec),
            advantages=advantage_options(self.spec),
            schedule=schedule_of(self.spec, self.spec.optimizer.learning_rate),
            mini_batches=algorithm.mini_batches,
            micro_batch_tokens=trainer.micro_batch_tokens,
            pack_length=trainer.row_tokens,
            seed=self.spec.seed,
            keep_tokens=self.spec.recording.share > 0,
            whole_batches=bool(whole_batches_for(self.spec)),
            reference_placement=needs.reference_placement,
            teacher_placement=needs.teacher_placement,
        )


@dataclass(frozen=True)
class RowsSettings:
    """One trainer on fixed rows, which has no store and no controller."""

    name: str
    spec: JobSpec
    paths: TrainerPaths
    dataset: Path
    cache: Path
    token: str
    access: MethodAccess | str = NOBODY
    bind: str = "127.0.0.1"


def adapter_of(spec: JobSpec) -> AdapterConfig | None:
    """The adapter that a job trains instead of all weights."""
    wanted = spec.trainer.lora
    return None if wanted is None else AdapterConfig(wanted.rank, wanted.alpha, tuple(wanted.targets))


def model_options(spec: JobSpec) -> ModelOptions:
    """The numerics of any training."""
    trainer = spec.trainer
    return ModelOptions(
        precision=trainer.precision,
        attention=trainer.attention_backend,
        recompute=trainer.recompute,
        compile=trainer.compiled,
        fp32_head=trainer.fp32_head,
        adapter=adapter_of(spec),
        seed=spec.seed,
        router=(trainer.router_aux_coefficient, trainer.router_z_coefficient),
        optimizer=adamw_options(spec),
    )


@dataclass(frozen=True)
class UserOverrides:
    """What the user's files replace: `trainer.hooks` first, then the recipe."""

    train: Callable[[Any], Any] | None = None
    compute_advantages: Callable[..., Any] | None = None
    compute_loss: Callable[..., Any] | None = None
    graph: Callable[[Any], Any] | None = None

    @property
    def hooks(self) -> frozenset[str]:
        """Names of those that columns of own stages are for."""
        found = {"compute_advantages": self.compute_advantages, "compute_loss": self.compute_loss}
        return frozenset(name for name, hook in found.items() if hook is not None)


def overrides(hooks_file: Path | None, recipe_file: Path | None) -> UserOverrides:
    """Load the hooks and the recipe. Raises DataError when a file can't be loaded."""
    hooks, recipe = (None if file is None else load_recipe(file) for file in (hooks_file, recipe_file))
    loaded = [one for one in (hooks, recipe) if one is not None]
    if hooks is not None and hooks.graph is not None:
        raise DataError(f"{hooks.path}: graph(ctx) is not looked for here", fix="move it to the recipe's file")
    return UserOverrides(
        train=next((one.train for one in loaded if one.train), None),
        compute_advantages=next((one.compute_advantages for one in loaded if one.compute_advantages), None),
        compute_loss=next((one.compute_loss for one in loaded if one.compute_loss), None),
        graph=recipe.graph if recipe is not None else None,
    )


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
            token=token_of(resolved, Role.TRAINER),
            access=access_of(resolved, Role.TRAINER),
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
        token=token_of(resolved, Role.TRAINER),
        access=access_of(resolved, Role.TRAINER),
        bind=resolved.bind,
        advertise=resolved.endpoints.trainer,
        patience_s=resolved.patience_s,
        in_pods=resolved.in_pods,
    )


_OF_LAYOUT = (
    "checkpoints", "fences", "evidence", "weights", "metrics", "tensorboard", "recording", "tokens", "model",
    "exports", "evaluations",
)  # fmt: skip


def _paths(resolved: ResolvedJob) -> TrainerPaths:
    layout = resolved.layout
    return TrainerPaths(
        start_model=resolved.model_path,
        tokenizer=resolved.tokenizer_path,
        recipe=resolved.recipe_path,
        hooks=resolved.hooks_path,
        teacher=resolved.teacher_path,
        cards=resolved.cards,
        handed=memory_directory(resolved.uid) if resolved.spec.weights_by_memory else None,
        **{name: getattr(layout, name) for name in _OF_LAYOUT},
    )
