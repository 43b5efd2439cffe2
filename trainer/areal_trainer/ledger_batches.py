"""Batches from the ledger, with the policy that learns them: what every rank loads, does and gives back."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from areal.dataflow.own import own_graph
from areal.errors import ExitCode
from areal.observe.waits import WaitRegistry, told
from areal.spec.job import JobSpec
from areal.spec.serving import SglangEngine
from areal.weights.adapter import ADAPTER_CONFIG
from torch import Tensor

from areal_trainer.actor import Actor
from areal_trainer.cards import SharedCards
from areal_trainer.checkpoint.catalog import FoundCheckpoint
from areal_trainer.checkpoint.checkpointer import CRITIC, Checkpointer, CheckpointPart
from areal_trainer.critic import ValueCritic
from areal_trainer.engine.engine import PolicyEngine, ValueEngine
from areal_trainer.engine.group import RankGroup, first_works
from areal_trainer.engine.meeting import LOAD_DEADLINE_S, Meeting
from areal_trainer.engine.optimizer import local
from areal_trainer.engine.self_check import check_packing
from areal_trainer.first_rank import PUBLISH_DEADLINE_S
from areal_trainer.frozen import REFERENCE, TEACHER, FrozenModels, StageModels
from areal_trainer.hooks import HookFacts, try_hooks
from areal_trainer.ledger_desk import LedgerDesk
from areal_trainer.options import critic_options
from areal_trainer.publish.canary import prepare
from areal_trainer.publish.exporter import side_files
from areal_trainer.publish.publisher import Publisher
from areal_trainer.rollout import Rollout
from areal_trainer.settings import TrainerSettings, overrides
from areal_trainer.spans import PhaseTimer


class LedgerBatches:
    """A run of RL."""

    def __init__(
        self, settings: TrainerSettings, ranks: RankGroup, desk: LedgerDesk, waits: WaitRegistry,
        stopping: threading.Event,
    ) -> None:  # fmt: skip
        """Loads the models, and tries the user's hooks with them. `desk` is a null object on other ranks than 0."""
        self._settings, self._ranks, self._desk, self._waits = settings, ranks, desk, waits
        self._stopping = stopping
        self._user = user = overrides(settings.paths.hooks, settings.paths.recipe)
        self._cards = self._shared_cards()
        self._own = own_graph(user.graph, settings.spec, user.hooks) if user.graph is not None else None
        loaded = Meeting(ranks, "loading the model", LOAD_DEADLINE_S)
        self._engine = PolicyEngine(settings.paths.start_model, settings.engine, ranks)
        beside = self._load()
        loaded.all_here(waits)
        self._timer = PhaseTimer()
        keep = settings.spec.checkpoint.keep
        self.checkpointer = Checkpointer(settings.paths.checkpoints, keep, self._engine, beside, waits=waits)
        self._publisher = Publisher(
            settings.paths.handed or settings.paths.weights,
            _published_files(settings),
            ranks.rank,
            Meeting(ranks, "writing a version", PUBLISH_DEADLINE_S),
            desk.announce,
            waits,
            full_every=settings.spec.weight_sync.full_every if settings.deltas else 1,
            base=settings.paths.start_model if settings.adapter is not None else None,
            exporter=desk.exporter(),
            group=desk.group(),
            volume=settings.paths.weights if settings.paths.handed else None,
            keep_every=settings.spec.checkpoint.interval_steps,
        )
        served = settings.spec.generation.engine
        self._probe = prepare(
            self._engine,
            settings.paths.tokenizer,
            served_in_bfloat16=served.dtype == "bfloat16",
            context=served.context_length if isinstance(served, SglangEngine) else None,
        )
        check_packing(self._engine, self._probe.token_ids, self._probe.spread)
        if self._cards is not None:
            self._cards.holds(lambda: self._on_device(beside))

    def _load(self) -> dict[str, CheckpointPart]:
        """The models beside the policy; what of them is in a checkpoint."""
        settings, ranks, user = self._settings, self._ranks, self._user
        beside: dict[str, CheckpointPart] = {}
        self._critic: ValueCritic | None = None
        if (wanted := critic_options(settings.spec)) is not None:
            values = ValueEngine(settings.paths.start_model, settings.critic_engine, ranks)
            self._critic, beside[CRITIC] = ValueCritic(values, wanted), values
        facts = HookFacts.of(settings.spec, self._own)
        try_hooks(user.compute_advantages, user.compute_loss, self._engine.vocabulary, facts)
        self._frozen = FrozenModels(settings, self._engine, ranks, self._waits, self._own)
        trainer = settings.spec.trainer
        models = StageModels(self._engine, settings.paths.start_model, trainer.micro_batch_tokens, trainer.row_tokens)
        models.start(self._own)
        return {**beside, **models.parts}

    def _shared_cards(self) -> SharedCards | None:
        """The cards that the servers have too, taken: before this, their turn must be over."""
        settings = self._settings
        if not settings.spec.shared_cards:
            return None
        cards = SharedCards(settings.paths.cards, self._ranks.device, self._waits)
        cards.take(settings.spec.groups_patience_s, self._stopping.is_set)
        return cards

    def _on_device(self, beside: dict[str, CheckpointPart]) -> Iterator[Tensor]:
        """All that lies on this rank's device between two steps."""
        yield from self._engine.parameters()
        yield from self._frozen.parameters()
        for part in (self._engine, *beside.values()):
            yield from map(local, part.state().values())

    def prepare(self) -> None:
        """Nothing: the start model was probed when it was loaded."""

    def begin(self, fence: int, found: FoundCheckpoint | None) -> None:
        """Make the two objects of a training loop, and publish what the checkpoint holds where nobody has it."""
        settings, user, desk = self._settings, self._user, self._desk
        self._frozen.ready()
        first = first_works(self._ranks, partial(desk.start, self._stopping.is_set, self._timer))
        self._rollout = rollout = Rollout(
            self._ranks,
            fence,
            self._engine.vocabulary,
            images=self._engine.image_shape,
            first=first,
            publisher=self._publisher,
            timer=self._timer,
            probe=self._probe,
            waits=self._waits,
            cards=self._cards,
        )
        self._actor = Actor(
            self._engine,
            settings.actor,
            self.checkpointer,
            timer=self._timer,
            still_mine=desk.still_mine,
            compute_advantages=told(user.compute_advantages, self._waits) if user.compute_advantages else None,
            compute_loss=told(user.compute_loss, self._waits) if user.compute_loss else None,
            reference=self._frozen.get(REFERENCE),
            teacher=self._frozen.get(TEACHER),
            critic=self._critic,
            own_graph=self._own,
        )
        if rollout.due().publish:
            rollout.publish(self._actor)

    def train(self) -> ExitCode:
        """The loop, the recipe's where it has one; the last version is published, everything saved and evaluated."""
        rollout, actor, ranks = self._rollout, self._actor, self._ranks
        (self._user.train or train)(TrainContext(rollout, actor, self._settings.spec, ranks.rank, ranks.world_size))
        self._desk.check_end(rollout.stopped)
        if rollout.resting:  # stopped while the servers had the cards, and they did not come: nothing can be saved
            return ExitCode.DRAINED
        rollout.saved()  # it may be of this very step
        due = rollout.due(checkpoint_now=True)
        if due.publish and not rollout.stopped:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))
            rollout.saved()
        if not rollout.stopped:
            rollout.settle()
            first_works(ranks, self._desk.finish)
            rollout.evaluate()
        self._desk.tidy()
        return ExitCode.DRAINED if rollout.stopped else ExitCode.DONE

    def close(self) -> None:
        """Nothing more is asked, published or saved."""
        self._frozen.close()
        self._publisher.close()
        self.checkpointer.close()
        if self._cards is not None:
            self._cards.close()


def _published_files(settings: TrainerSettings) -> dict[str, bytes | Path]:
    """Files beside the tensors of a version."""
    if settings.adapter is not None:
        return {ADAPTER_CONFIG: settings.adapter.to_bytes(str(settings.paths.start_model))}
    return side_files(settings.paths.start_model, settings.paths.tokenizer, settings.spec.model.chat_template)


# ---- The training loop, top to bottom, and its arguments. A recipe's `train(ctx)` may replace it


def train(ctx: "TrainContext") -> None:
    """Take, train, publish, save, until the run is over.

    Every rank runs this. Both calls of the actor run stages of the step's graph: through the advantages, and the rest.
    Where advantages need the group alone, groups are taken as they become complete: their gradient is accumulated
    while others are still sampled, and the one update is made when the batch is whole.
    """
    rollout, actor = ctx.rollout, ctx.actor
    while (batch := rollout.prepare_batch(early=actor.accumulates)) is not None:
        advantages = actor.advantages(batch.tokens)
        if not batch.whole:
            actor.accumulate(batch, advantages)
            continue
        update = actor.update(batch, advantages, begun=batch.begun)

        due = rollout.trained(batch, advantages, update)
        if due.publish:
            rollout.publish(actor)
        if due.checkpoint:
            rollout.commit(actor.save(due.position))


@dataclass(frozen=True)
class TrainContext:
    """`ctx` of `train(ctx)`. Every rank has one, and every rank must make the same calls on it.

    Before `train` the start version is published and the checkpoint loaded; after it the final version is published
    and saved. In between, a loop must hand each batch of `rollout.prepare_batch()` to `rollout.trained()` before it
    asks for the next, and do what is due then.
    """

    rollout: Rollout
    actor: Actor
    spec: JobSpec
    rank: int
    world_size: int
