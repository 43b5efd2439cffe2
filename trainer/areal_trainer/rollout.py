"""Batches in, weights out: the training loop's interface to ledger and servers.

One of the two objects a training loop works with (the other is `Actor`). Every method is a collective: all ranks call
it in the same order. Rank 0 answers for all by its `FirstRank`; the others are told.
"""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal.image_shape import ImageShape
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId

from areal_trainer.actor import Actor, UpdateFigures
from areal_trainer.algorithms.advantages import Advantages
from areal_trainer.cards import SharedCards
from areal_trainer.checkpoint.saving import RunPosition, Saving
from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import balanced
from areal_trainer.engine.group import RankGroup, RankMessage, wait_together
from areal_trainer.first_rank import PUBLISH_DEADLINE_S, FirstRank
from areal_trainer.publish.canary import CanaryProbe, canary
from areal_trainer.publish.publisher import Publisher, PublishOrder
from areal_trainer.spans import PhaseTimer, seconds_by_rank

# Partition of a model's tensors over ranks: which rank copies and writes which tensor of a published version.

_LAYER = re.compile(r"^(.*\.layers\.\d+)\.")


def owners(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The writing rank of each tensor, by name. `sizes` are elements or bytes, all alike.

    Largest first, each to the rank that has least so far.
    """
    layers: dict[str, list[str]] = {}
    for name in sizes:
        found = _LAYER.match(name)
        layers.setdefault(found[1] if found else name, []).append(name)
    named = [layers[layer] for layer in sorted(layers)]
    parts = balanced([sum(sizes[name] for name in names) for names in named], ranks)
    return {name: rank for rank, part in enumerate(parts) for place in part for name in named[place]}


@dataclass(frozen=True)
class TrainBatch:
    """The groups of one step. `max_steps` is the run's length as known now: the schedule depends on it."""

    step: int
    max_steps: int
    tokens: TokenBatch
    micro_batch_divisor: int = 1
    whole: bool = True  # else complete groups of a batch that isn't whole yet
    begun: tuple[int, ...] = ()  # groups of a whole batch that were handed out before


@dataclass(frozen=True)
class Due:
    """What is to be done after a step, the same on every rank."""

    publish: bool
    checkpoint: bool
    position: RunPosition


class Rollout:
    """The ledger and the servers, as the training loop sees them."""

    def __init__(
        self,
        ranks: RankGroup,
        fence: int,
        vocabulary: int,
        *,
        images: ImageShape | None = None,
        first: FirstRank,
        publisher: Publisher,
        timer: PhaseTimer,
        probe: CanaryProbe,
        waits: WaitRegistry,
        cards: SharedCards | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first` is a null object on other ranks than 0 (`first_only`). `cards` are shared with the servers."""
        self._ranks = ranks
        self._fence = fence
        self._vocabulary = vocabulary
        self._images = images
        self._first = first
        self._publisher = publisher
        self._writers: dict[str, int] = {}  # which rank writes which tensor
        self._timer = timer
        self._probe = probe
        self._waits = waits
        self._cards = cards
        self._now = now
        self._saving: Saving | None = None  # the newest checkpoint
        self.stopped = False  # asked to stop before the last step
        self.resting = False  # the servers have the shared cards

    def prepare_batch(self, *, early: bool = False) -> TrainBatch | None:
        """The next batch in order, as soon as it may be trained; None when the run is over or must stop.

        With `early` complete groups of it come before it is whole, for `Actor.accumulate` alone.
        """
        while True:
            said = self._first.poll(self._vocabulary, self._images, self._timer, early=early)
            # The others' wait for samples is the wait for rank 0's word.
            with nullcontext() if self._ranks.first else self._timer.phase("wait"):
                message = self._ranks.tell(said)
            match message.header["kind"]:
                case "batch" | "part":
                    return _batch(message)
                case "sleep":
                    self._rest()
                case "wake":
                    assert self._cards is not None
                    with self._timer.phase("wait"):
                        self._cards.enter()
                    self.resting = False
                    self._first.began()
                case "end":
                    self.stopped = bool(message.header["stopped"])
                    return None

    def _rest(self) -> None:
        """Give shared cards to the servers, which find there what was published last; otherwise nothing happens."""
        if self._cards is None or self.resting:
            return
        with self._timer.phase("wait"):
            self._cards.leave()
        self.resting = True
        self.settle()
        self._first.gave_back()

    def trained(self, batch: TrainBatch, advantages: Advantages, update: UpdateFigures) -> Due:
        """The batch is consumed: leaves evidence and metrics, moves on, and says what is due."""
        seconds = self._timer.take()
        self._first.trained(batch, advantages, update, seconds, seconds_by_rank(seconds, self._ranks)[1:])
        return self.due()

    def due(self, *, checkpoint_now: bool = False) -> Due:
        """What is to be done now, without a step before it: at the start and at the end."""
        told = self._ranks.tell(self._first.due(checkpoint_now)).header
        return Due(told["publish"], told["checkpoint"], RunPosition(told["step"], self._fence))

    def publish(self, actor: Actor) -> None:
        """Publish the current weights; written and announced beside training, the final version awaited."""
        with self._timer.phase("publish"):
            proof = canary(actor.engine, self._probe)
            order = self._order()
            if not self._writers:
                whole = actor.engine.options.adapter is None  # an adapter is one file, and small
                sizes = {name: spec.elements for name, spec in actor.engine.export_specs().items()}
                self._writers = owners(sizes, self._ranks.world_size if whole else 1)
            self._publisher.publish(
                order, actor.engine.export(self._writers), actor.engine.export_specs(self._writers), proof,
                deadline_s=PUBLISH_DEADLINE_S, device=self._ranks.device,
            )  # fmt: skip
            self._first.published()
            if order.final:
                self._publisher.wait(PUBLISH_DEADLINE_S)

    def settle(self) -> None:
        """Wait until what was published is out."""
        self._publisher.wait(PUBLISH_DEADLINE_S)

    def _order(self) -> PublishOrder:
        """All ranks learn what is published, once the version before is out."""
        deadline = self._now() + PUBLISH_DEADLINE_S
        words = "the version before to be written and accepted"
        with self._waits.waiting("publish", words, deadline_s=PUBLISH_DEADLINE_S):
            told: dict[str, Any] = {"policy": ""}
            while not told["policy"]:
                told = self._ranks.tell(self._first.next_order(self._publisher, self._fence, deadline)).header
        staging, policy = Path(told["staging"]), PolicyId.parse(told["policy"])
        return PublishOrder(policy, staging, told["final"], told["full"], told["byGroup"])

    def commit(self, saving: Saving) -> None:
        """What a checkpoint holds may be freed, once it is on disk: seen to beside training."""
        self._first.commit_sealed()  # the one before: `Actor.save` has waited for it
        self._saving = saving
        self._first.saving(saving)

    def saved(self) -> None:
        """Wait until the checkpoint under way is on disk, and what it holds is freed."""
        if self._saving is not None:
            with self._timer.phase("checkpoint"):
                self._saving.wait()
            self._saving = None
        self._first.commit_sealed()

    def evaluate(self) -> None:
        """Wait until the controller's evaluation of the final version is done. Raises InfraError without progress."""
        self._rest()
        with self._waits.waiting("evaluation", "the evaluation of the final version"):
            wait_together(self._ranks, self._first.evaluation())


def _batch(message: RankMessage) -> TrainBatch:
    arrays: dict[str, Any] = dict(message.arrays)
    return TrainBatch(
        step=message.header["step"],
        max_steps=message.header["max_steps"],
        tokens=TokenBatch(**arrays),
        micro_batch_divisor=message.header["micro_batch_divisor"],
        whole=message.header["kind"] == "batch",
        begun=tuple(message.header["begun"]),
    )
