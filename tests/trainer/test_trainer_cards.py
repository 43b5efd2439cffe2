"""Shared cards: what the trainer moves off its device comes back to the bit, and when its turns begin and end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from areal.cards import CardLock, CardSide
from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from areal_trainer.cards import STOP_S, SharedCards, TrainerTurn
from areal_trainer.control import AskedToStop, Orders, Telling
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.optimizer import local
from support.trainer_parts import batch


def held(engine: PolicyEngine) -> list[torch.Tensor]:
    return [*engine.parameters(), *(local(tensor) for tensor in engine.state().values())]


def size(engine: PolicyEngine) -> int:
    storages = [local(tensor.detach()).untyped_storage() for tensor in held(engine)]
    return sum({storage._cdata: storage.size() for storage in storages}.values())


def step(engine: PolicyEngine) -> float:
    tokens = batch(3, 4)
    micros = rank_micro_batches(
        tokens, np.arange(tokens.sequences), tokens.trainable(), rank=0, world_size=1, micro_batch_tokens=64,
        pack_length=32,
    )  # fmt: skip
    engine.accumulate(micros, lambda logprobs, _entropy, _micro: -logprobs.mean())
    return engine.optimizer.step(1e-2)


@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_what_left_the_device_comes_back_to_the_bit_and_is_trained_on(model_path, ranks, tmp_path, state):
    options = ModelOptions(optimizer=AdamWOptions(state=state))
    engine, beside = (PolicyEngine(model_path, options, ranks) for _ in range(2))
    cards = SharedCards(tmp_path, ranks.device, WaitRegistry("trainer"))
    cards.take(1.0)
    cards.holds(lambda: held(engine))
    server = CardLock(tmp_path, CardSide.SERVING)
    for _ in range(3):
        assert step(engine) == step(beside)
        whole = size(engine)
        assert not server.try_take()
        cards.leave()
        assert size(engine) == 0 < whole
        assert server.try_take()
        server.release()
        cards.enter()
        assert size(engine) == whole
        for mine, other in zip(held(engine), held(beside), strict=True):
            assert torch.equal(local(mine.detach()), local(other.detach()))


def test_a_trainer_waits_for_the_servers_and_gives_up_when_it_is_asked_or_too_late(ranks, tmp_path):
    cards = SharedCards(tmp_path, ranks.device, WaitRegistry("trainer"))
    server = CardLock(tmp_path, CardSide.SERVING)
    assert server.try_take()
    with pytest.raises(InfraError, match="servers kept"):
        cards.take(0.0)
    asked = itertools.chain([False], itertools.repeat(True))
    with pytest.raises(AskedToStop):
        cards.take(60.0, lambda: next(asked))
    server.release()
    cards.take(0.0)


class Turn:
    """A trainer's turn under a clock that moves when it sleeps."""

    def __init__(self, patience_s: float = 100.0) -> None:
        self.now = 0.0
        self.telling, self.orders = Telling(), Orders()
        self.turn = TrainerTurn(
            self.telling, self.orders, WaitRegistry("trainer"), patience_s, lambda: self.now, self.sleep
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_turn_begins_with_an_order_that_is_newer_than_the_one_that_ended():
    bench = Turn()
    assert not bench.turn.known(0.1)
    bench.orders.turn, bench.orders.train = 5, True
    assert bench.turn.known(0.1)
    bench.turn.gave_back()
    assert (bench.telling.turn, bench.turn.asleep) == (5, True)
    assert not bench.turn.begun(0.5, wants=False), "that turn is over"
    bench.orders.turn, bench.orders.train = 6, False
    assert not bench.turn.begun(0.5, wants=False), "the servers'"
    bench.orders.turn, bench.orders.train = 7, True
    assert bench.turn.begun(0.5, wants=False)
    bench.turn.began()
    assert not bench.turn.asleep
    assert bench.telling.turn == 5, "this one goes on until it is given back"


def test_one_that_must_stop_asks_for_the_cards_and_not_for_ever():
    bench = Turn()
    bench.orders.turn, bench.orders.train = 5, True
    bench.turn.gave_back()
    bench.now = 50.0
    assert not bench.turn.too_late()
    while not bench.turn.too_late():
        assert not bench.turn.begun(0.5, wants=True)
        assert bench.telling.wants_cards
    assert STOP_S <= bench.now - 50.0 <= STOP_S + 1.0
    bench.turn.gave_back()
    assert not bench.telling.wants_cards


def test_servers_that_never_end_their_turn_end_the_trainer():
    bench = Turn(patience_s=3.0)
    bench.orders.turn = 5
    bench.turn.gave_back()
    with pytest.raises(InfraError, match="not the trainer's turn"):
        bench.turn.begun(10.0, wants=False)
