"""The Lua scripts do what the model says: the same operations on both, the same answers, the same state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from areal.errors import ArealError, FencedError
from areal.ledger.async_client import AsyncLedger
from areal.ledger.state import LedgerModel
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import COMPLETE, NewSample, SampleMeta, TombstoneReason
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from ledger_samples import meta, payload
from support.redis_server import RedisServer

pytestmark = pytest.mark.component

SIZE = 2
COUNTERS = ("trainer_fence", "controller_fence", "low", "committed")
GROUPS = st.integers(0, 7)
STEPS = st.integers(0, 3)
FENCES = st.integers(0, 2)  # taken from the newest: mostly the living one
OUTCOMES = st.sampled_from(
    [COMPLETE, COMPLETE, COMPLETE, TombstoneReason.FILTERED, TombstoneReason.POISON, TombstoneReason.ENDED]
)


def dump(client: redis.Redis, job: str) -> dict[str, Any]:
    """Everything Redis holds of a job, in the model's words."""
    tag = f"{{{job}}}".encode()
    fields = {k.decode(): int(v) for k, v in client.hgetall(tag + b":meta").items()}
    samples: dict[int, dict[int, tuple[bytes, SampleMeta]]] = {}
    for key in client.keys(tag + b":s:*"):
        held = client.hgetall(key)
        samples[int(key.rsplit(b":", 1)[1])] = {
            int(name[1:]): (body, SampleMeta.unpack(held[b"m" + name[1:]]))
            for name, body in held.items()
            if name[:1] == b"p"
        }
    return {
        "meta": {name: fields.get(name, 0) for name in COUNTERS},
        "closed": {int(g): o.decode() for g, o in client.hgetall(tag + b":closed").items()},
        "batches": {int(step): tuple(map(int, g.split(b","))) for step, g in client.hgetall(tag + b":batches").items()},
        "samples": samples,
    }


def told(model: LedgerModel) -> dict[str, Any]:
    """Everything the model holds."""
    return {
        "meta": {name: getattr(model, name) for name in COUNTERS},
        "closed": model.closed,
        "batches": model.batches,
        "samples": {group: held for group, held in model.samples.items() if held},
    }


def machine(server: RedisServer, runner: asyncio.Runner) -> type[RuleBasedStateMachine]:
    """A machine bound to a server."""

    class SameAsModel(RuleBasedStateMachine):
        compared = 0  # answers

        @initialize()
        def begin(self) -> None:
            server.flush()
            self.raw = redis.Redis(port=server.port)
            self.model = LedgerModel()
            self.sync = SyncLedger(server.address, "job")
            self.aio = AsyncLedger(server.address, "job")
            self.controller, self.trainer = 1, 1
            self.attempt = 0

        def teardown(self) -> None:
            if hasattr(self, "raw"):
                self.raw.close()
                self.sync.close_connection()
                runner.run(self.aio.close_connection())

        def both(self, on_model: Callable[[], Any], on_redis: Callable[[], Any]) -> None:
            answers = []
            for side in (on_model, on_redis):
                try:
                    answers.append(side())
                except FencedError as error:
                    answers.append(str(error))
            assert answers[0] == answers[1]
            type(self).compared += 1

        @rule(group=GROUPS, index=st.integers(0, SIZE - 1))
        def add(self, group: int, index: int) -> None:
            self.attempt += 1
            body, about = payload(group, index, self.attempt), meta(self.attempt)
            self.both(
                lambda: self.model.add_sample(group, index, body, about),
                lambda: runner.run(self.aio.add_sample(group, index, body, about)),
            )

        @rule(group=GROUPS)
        def fill(self, group: int) -> None:
            self.attempt += 1
            new = [NewSample(group, i, payload(group, i, self.attempt), meta(self.attempt)) for i in range(SIZE)]
            self.both(
                lambda: [self.model.add_sample(n.group, n.index, n.payload, n.meta) for n in new],
                lambda: runner.run(self.aio.add_samples(new)),
            )

        @rule(group=GROUPS)
        def finish(self, group: int) -> None:
            self.fill(group)
            self.close(group, COMPLETE, 0, None)

        @rule(group=GROUPS, outcome=OUTCOMES, behind=FENCES, at_least=st.sampled_from([None, None, 1]))
        def close(self, group: int, outcome: str, behind: int, at_least: int | None) -> None:
            fence = max(0, self.controller - behind)
            self.both(
                lambda: self.model.close(fence, group, outcome, SIZE, at_least),
                lambda: runner.run(self.aio.close(fence, group, outcome, SIZE, at_least)),
            )

        @rule(newer=st.booleans())
        def claim(self, newer: bool) -> None:
            self.controller += newer
            self.both(lambda: self.model.claim(self.controller), lambda: runner.run(self.aio.claim(self.controller)))

        @rule(step=STEPS, groups=st.lists(GROUPS, min_size=1, max_size=3, unique=True), behind=FENCES)
        def assign(self, step: int, groups: list[int], behind: int) -> None:
            fence = max(0, self.controller - behind)
            self.both(
                lambda: self.model.assign(fence, step, groups), lambda: runner.run(self.aio.assign(fence, step, groups))
            )

        @rule(step=STEPS, groups=st.lists(GROUPS, min_size=2, max_size=2, unique=True))
        def whole_batch(self, step: int, groups: list[int]) -> None:
            for group in groups:
                self.finish(group)
            self.assign(step, groups, 0)
            self.take(step, 0)

        @rule(groups=st.lists(GROUPS, min_size=2, max_size=2, unique=True))
        def batches_that_share_a_group(self, groups: list[int]) -> None:
            step = self.model.committed
            for group in groups:
                self.finish(group)
            self.assign(step, groups[:1], 0)
            self.assign(step + 1, groups, 0)
            self.commit(step + 1, 0)
            self.take(step + 1, 0)

        @rule(low=GROUPS, behind=FENCES)
        def advance(self, low: int, behind: int) -> None:
            fence = max(0, self.controller - behind)
            self.both(lambda: self.model.advance(fence, low), lambda: runner.run(self.aio.advance(fence, low)))

        @rule(group=GROUPS, behind=FENCES)
        def reopen(self, group: int, behind: int) -> None:
            fence = max(0, self.controller - behind)
            self.both(lambda: self.model.reopen(fence, group), lambda: runner.run(self.aio.reopen(fence, group)))

        @rule(step=STEPS, newer=st.booleans())
        def recover(self, step: int, newer: bool) -> None:
            self.trainer += newer
            self.both(lambda: self.model.recover(self.trainer, step), lambda: self.sync.recover(self.trainer, step))

        @rule(step=STEPS, behind=FENCES)
        def take(self, step: int, behind: int) -> None:
            fence = max(0, self.trainer - behind)
            self.both(lambda: self.model.take(fence, step), lambda: self.sync.take(fence, step))

        @rule(step=STEPS, behind=FENCES)
        def commit(self, step: int, behind: int) -> None:
            fence = max(0, self.trainer - behind)
            self.both(lambda: self.model.commit(fence, step), lambda: self.sync.commit(fence, step))

        @rule(upto=st.sampled_from([None, 8]))
        def scan(self, upto: int | None) -> None:
            run_id = self.sync.run_id()
            self.both(lambda: self.model.scan(run_id), lambda: runner.run(self.aio.scan(upto)))

        @invariant()
        def same_state(self) -> None:
            if hasattr(self, "raw"):
                assert dump(self.raw, "job") == told(self.model)

        @invariant()
        def sound(self) -> None:
            if hasattr(self, "model"):
                model = self.model
                assert all(step >= model.committed for step in model.batches)
                assert not any(model.closed.get(g, COMPLETE) != COMPLETE for g in model.samples)

    return SameAsModel


def differs(server: RedisServer) -> bool:
    """Whether Redis and the model come apart, on schedules that are the same every time."""
    with asyncio.Runner() as runner:
        try:
            run_state_machine_as_test(
                machine(server, runner),
                settings=settings(
                    max_examples=300,
                    stateful_step_count=40,
                    deadline=None,
                    derandomize=True,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                    report_multiple_bugs=False,
                    print_blob=False,
                    verbosity=Verbosity.quiet,
                ),
            )
        except (AssertionError, ArealError, redis.RedisError):
            return True
    return False


def test_redis_answers_and_holds_what_the_model_does(redis_server: RedisServer) -> None:
    with asyncio.Runner() as runner:
        same = machine(redis_server, runner)
        run_state_machine_as_test(
            same,
            settings=settings(
                max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
    assert same.compared > 60, "each operation of the schedules was compared, and each schedule has some"
