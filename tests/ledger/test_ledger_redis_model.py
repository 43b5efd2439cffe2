"""The Lua scripts do what the model says: the same operations on both, the same answers, the same state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis
from areal.errors import ArealError, FencedError
from areal.ledger.client import AsyncLedger, SyncLedger
from areal.ledger.state import LedgerModel
from areal.ledger.values import COMPLETE, NewSample, SampleMeta, TombstoneReason
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from ledger_samples import meta, payload
from support.redis_server import RedisServer

pytestmark = pytest.mark.component

SIZE = 2
COUNTERS = ("trainer_fence", "controller_fence", "low", "frontier")
GROUPS = st.integers(0, 7)
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
        "ready": [int(i.split(b"-")[0]) - 1 for i, _ in client.xrange(tag + b":ready")],
        "samples": samples,
    }


def told(model: LedgerModel) -> dict[str, Any]:
    """Everything the model holds."""
    return {
        "meta": {name: getattr(model, name) for name in COUNTERS},
        "closed": model.closed,
        "ready": model.ready,
        "samples": {group: held for group, held in model.samples.items() if held},
    }


def machine(server: RedisServer, runner: asyncio.Runner) -> type[RuleBasedStateMachine]:
    """A machine bound to a server."""

    class SameAsModel(RuleBasedStateMachine):
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

        @rule(cursor=GROUPS, behind=FENCES, told_by=st.sampled_from([None, 0, 1]))
        def advance(self, cursor: int, behind: int, told_by: int | None) -> None:
            fence = max(0, self.controller - behind)
            trainer = None if told_by is None else max(0, self.trainer - told_by)
            self.both(
                lambda: self.model.advance(fence, cursor, trainer),
                lambda: runner.run(self.aio.advance(fence, cursor, trainer)),
            )

        @rule(group=GROUPS, behind=FENCES)
        def reopen(self, group: int, behind: int) -> None:
            fence = max(0, self.controller - behind)
            self.both(lambda: self.model.reopen(fence, group), lambda: runner.run(self.aio.reopen(fence, group)))

        @rule(consumed=GROUPS, newer=st.booleans(), cursor=st.sampled_from([None, 3, 6]))
        def recover(self, consumed: int, newer: bool, cursor: int | None) -> None:
            self.trainer += newer
            self.both(
                lambda: self.model.recover(self.trainer, consumed, cursor),
                lambda: self.sync.recover(self.trainer, consumed, cursor),
            )

        @rule(from_group=GROUPS, most=st.integers(1, 4), behind=FENCES)
        def take(self, from_group: int, most: int, behind: int) -> None:
            fence = max(0, self.trainer - behind)
            self.both(lambda: self.model.take(fence, from_group, most), lambda: self.sync.take(fence, from_group, most))

        @rule(consumed=GROUPS, behind=FENCES)
        def commit(self, consumed: int, behind: int) -> None:
            fence = max(0, self.trainer - behind)
            self.both(lambda: self.model.commit(fence, consumed), lambda: self.sync.commit(fence, consumed))

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
                assert model.low <= model.frontier
                assert model.ready == sorted(set(model.ready))
                assert all(g < model.frontier for g in model.ready)
                assert set(model.ready) <= set(model.closed)
                assert model.frontier not in model.closed
                assert all(g >= model.low for g in [*model.closed, *model.samples])
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
        run_state_machine_as_test(
            machine(redis_server, runner),
            settings=settings(
                max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
