"""The ledger on a Redis that dies, forgets and refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from areal.errors import ConfigError, FencedError, InfraError
from areal.ledger import calls, connection
from areal.ledger.async_client import AsyncLedger
from areal.ledger.connection import no_retry
from areal.ledger.sync_client import SyncLedger
from areal.ledger.values import COMPLETE, AddOutcome, CloseStatus, NewSample
from areal.plan.redis_conf import acl_file
from ledger_samples import meta, payload
from redis import exceptions as redis_errors
from redis.retry import Retry
from support.redis_server import RedisServer

pytestmark = pytest.mark.component

SIZE = 2
PASSWORDS = {"controller": "c-secret", "trainer": "t-secret", "worker": "w-secret"}


def samples(*groups: int, attempt: int = 0) -> list[NewSample]:
    return [NewSample(g, i, payload(g, i, attempt) * 50, meta(attempt)) for g in groups for i in range(SIZE)]


async def complete(ledger: AsyncLedger, *groups: int) -> None:
    await ledger.add_samples(samples(*groups))
    for group in groups:
        assert (await ledger.close(1, group, COMPLETE, SIZE)).status == CloseStatus.CLOSED


async def test_a_run_heals_after_redis_lost_its_tail(own_redis: RedisServer) -> None:
    outbox = samples(*range(8))
    async with AsyncLedger(own_redis.address, "job") as ledger:
        with SyncLedger(own_redis.address, "job") as trainer:
            await ledger.claim(1)
            await complete(ledger, 0, 1, 2)
            await ledger.assign(1, 0, (0, 1))
            before = await ledger.run_id()
            trainer.recover(4, 0)
            assert [t.group for t in trainer.take(4, 0)] == [0, 1]
            await ledger.close(1, 3, "filtered", SIZE)
            await complete(ledger, 4, 5)
            await ledger.assign(1, 1, (2, 4, 5))
            assert trainer.commit(4, 1) == 1
            expected = trainer.take(4, 1)
            assert [t.group for t in expected] == [2, 4, 5]

            own_redis.kill()
            own_redis.cut_tail(own_redis.aof.stat().st_size // 2)
            own_redis.restart()

            assert await ledger.run_id() != before
            lost = await ledger.scan(8)
            assert set(lost.samples) != {2, 4, 5}  # it did forget
            # Everyone repeats what it is the authority for; the trainer's client does so by itself.
            assert trainer.take(4, 1) in (expected, [])
            await ledger.claim(1)
            await ledger.advance(1, 2)
            await ledger.close(1, 3, "filtered", SIZE)
            results = await ledger.add_samples(outbox)
            assert {r.outcome for r, s in zip(results, outbox, strict=True) if s.group < 2} == {AddOutcome.FINISHED}
            for group in (2, 4, 5):
                await ledger.close(1, group, COMPLETE, SIZE)
            await ledger.assign(1, 1, (2, 4, 5))
            assert trainer.take(4, 1) == expected
            healed = await ledger.scan()
            assert (healed.low, healed.committed, healed.trainer_fence) == (2, 1, 4)
            assert 0 not in healed.samples
            assert 1 not in healed.samples


async def test_a_client_outlives_a_restart_of_redis(own_redis: RedisServer) -> None:
    async with AsyncLedger(own_redis.address, "job") as ledger:
        await complete(ledger, 0)
        own_redis.kill()
        adding = asyncio.create_task(ledger.add_samples(samples(1)))
        await asyncio.to_thread(own_redis.restart)
        assert [result.outcome for result in await adding] == [AddOutcome.STORED] * SIZE


async def test_a_redis_that_stays_away_is_an_error_with_a_fix(own_redis: RedisServer) -> None:
    own_redis.kill()
    async with AsyncLedger(own_redis.address, "job", retry_for_s=0.3) as ledger:
        with pytest.raises(InfraError, match="did not answer") as caught:
            await ledger.claim(1)
    assert "redis" in caught.value.fix
    with SyncLedger(own_redis.address, "job", retry_for_s=0.3) as trainer, pytest.raises(InfraError):
        trainer.take(1, 0)


async def test_a_full_redis_refuses_samples_and_loses_none(own_redis: RedisServer) -> None:
    async with AsyncLedger(own_redis.address, "job") as ledger:
        await complete(ledger, 0)
        with redis.Redis(port=own_redis.port) as raw:
            raw.config_set("maxmemory", "1mb")
            with pytest.raises(InfraError, match="full"):
                await ledger.add_samples(samples(1))
            raw.config_set("maxmemory", "0")
        assert (await ledger.add_samples(samples(1)))[0].outcome is AddOutcome.STORED
        assert set((await ledger.scan()).samples) == {0, 1}


async def test_waiting_ends_when_the_batch_is_whole(redis_server: RedisServer) -> None:
    with SyncLedger(redis_server.address, "job") as trainer:
        trainer.recover(1, 0)
        answers: list[bool] = []
        waiting = threading.Thread(target=lambda: answers.append(trainer.wait_ready(1, 1, 30.0)))
        waiting.start()
        async with AsyncLedger(redis_server.address, "job") as ledger:
            await ledger.assign(1, 1, (1, 0))
            await complete(ledger, 1)
            await complete(ledger, 0)
        await asyncio.to_thread(waiting.join, 30.0)
        assert answers == [True]
        assert not trainer.wait_ready(1, 2, 0.05)


async def test_what_came_back_below_the_watermark_is_swept(redis_server: RedisServer) -> None:
    async with AsyncLedger(redis_server.address, "job") as ledger:
        await ledger.advance(1, 10)
    with redis.Redis(port=redis_server.port) as raw, SyncLedger(redis_server.address, "job") as trainer:
        trainer.recover(1, 4)
        raw.hset("{job}:s:3", mapping={"p0": b"x", "m0": meta().pack()})
        trainer.recover(2, 4)
        assert raw.keys("{job}:s:*") == []


async def test_scripts_are_learnt_again_after_redis_forgot_them(redis_server: RedisServer) -> None:
    async with AsyncLedger(redis_server.address, "job") as ledger:
        await complete(ledger, 0)
        with redis.Redis(port=redis_server.port) as raw:
            raw.script_flush()
        await complete(ledger, 1)
        assert set((await ledger.scan()).closed) == {0, 1}


async def test_an_old_controller_is_refused(redis_server: RedisServer) -> None:
    async with AsyncLedger(redis_server.address, "job") as ledger:
        await ledger.claim(2)
        with pytest.raises(FencedError, match="fence 2 is alive"):
            await ledger.close(1, 0, "filtered", SIZE)
        assert (await ledger.scan()).closed == {}


@pytest.mark.parametrize("reason", ["poison", "ended"])
async def test_only_what_cannot_be_trained_follows_on_complete(redis_server: RedisServer, reason: str) -> None:
    async with AsyncLedger(redis_server.address, "job") as ledger:
        await complete(ledger, 0)
        assert (await ledger.close(1, 0, "filtered", SIZE)).outcome == COMPLETE
        assert (await ledger.close(1, 0, reason, SIZE)).status is CloseStatus.CLOSED
        assert (await ledger.close(1, 0, COMPLETE, SIZE)).outcome == reason
        other = "ended" if reason == "poison" else "poison"
        assert (await ledger.close(1, 0, other, SIZE)).outcome == reason
        snapshot = await ledger.scan()
        assert (snapshot.closed, snapshot.samples) == ({0: reason}, {})
        await ledger.assign(1, 0, (0,))
        with SyncLedger(redis_server.address, "job") as trainer:
            assert trainer.take(1, 0)[0].outcome == reason


async def test_a_deadline_closes_with_the_whole_samples_there_are(redis_server: RedisServer) -> None:
    async with AsyncLedger(redis_server.address, "job") as ledger:
        await ledger.add_sample(0, 2, b"x", meta())
        assert (await ledger.close(1, 0, COMPLETE, 3, at_least=2)).missing == (0, 1)
        await ledger.add_sample(0, 0, b"y", meta())
        assert (await ledger.close(1, 0, COMPLETE, 3, at_least=2)).status is CloseStatus.CLOSED
        assert (await ledger.add_sample(0, 1, b"z", meta())).outcome is AddOutcome.FINISHED
        await ledger.assign(1, 0, (0,))
        with SyncLedger(redis_server.address, "job") as trainer:
            assert trainer.take(1, 0)[0].indices == (0, 2)


async def test_lost_samples_of_a_complete_group_are_told(redis_server: RedisServer) -> None:
    async with AsyncLedger(redis_server.address, "job") as ledger:
        await complete(ledger, 0)
        await ledger.assign(1, 0, (0,))
        with redis.Redis(port=redis_server.port) as raw, SyncLedger(redis_server.address, "job") as trainer:
            raw.delete("{job}:s:0")
            with pytest.raises(InfraError, match="lost samples"):
                trainer.take(1, 0)
            assert await ledger.reopen(1, 0)
            assert trainer.take(1, 0) == []
            await complete(ledger, 0)
            assert [t.group for t in trainer.take(1, 0)] == [0]


# ---- logins


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RedisServer]:
    path = tmp_path / "users.acl"
    path.write_text(acl_file("job", PASSWORDS))  # type: ignore[arg-type]
    server = RedisServer.start(tmp_path / "data", aclfile=path)
    yield server
    server.stop()


def login(server: RedisServer, user: str) -> AsyncLedger:
    return AsyncLedger(server.address, "job", username=user, password=PASSWORDS[user], retry_for_s=2.0)


async def test_every_login_can_do_its_own_work(guarded: RedisServer) -> None:
    async with login(guarded, "controller") as controller, login(guarded, "worker") as worker:
        await controller.claim(1)
        assert (await worker.add_samples(samples(0)))[0].outcome is AddOutcome.STORED
        assert (await worker.add_sample(0, 0, b"other", meta(1))).outcome is AddOutcome.DUPLICATE
        assert await worker.committed() == 0
        assert await worker.run_id() == await controller.run_id()
        assert (await controller.close(1, 0, COMPLETE, SIZE)).status is CloseStatus.CLOSED
        await controller.assign(1, 0, (0,))
        assert (await controller.scan()).batches == {0: (0,)}
    with SyncLedger(guarded.address, "job", username="trainer", password=PASSWORDS["trainer"]) as trainer:
        trainer.recover(1, 0)
        assert trainer.wait_ready(1, 0, 1.0)
        assert trainer.take(1, 0)[0].complete
        assert trainer.commit(1, 1) == 1


async def test_a_guarded_ledger_reads_back_all_that_its_file_has(guarded: RedisServer) -> None:
    """Redis plays its file back as the default user and asks the access rules about each call of a script again."""
    with SyncLedger(guarded.address, "job", username="trainer", password=PASSWORDS["trainer"]) as trainer:
        async with login(guarded, "controller") as controller, login(guarded, "worker") as worker:
            await controller.claim(3)
            await worker.add_samples(samples(*range(6)))
            for group, outcome in enumerate([COMPLETE, COMPLETE, "filtered", COMPLETE, "rejected"]):
                await controller.close(3, group, outcome, SIZE)
            await controller.assign(3, 0, (0, 1))
            await controller.assign(3, 1, (3,))
            trainer.recover(2, 0)
            trainer.commit(2, 1)
            await controller.advance(3, 2)
            before = (replace(await controller.scan(8), run_id=""), trainer.take(2, 1))
            assert before[1]
            guarded.kill()
            guarded.restart()
            assert (replace(await controller.scan(8), run_id=""), trainer.take(2, 1)) == before
            with pytest.raises(FencedError):
                await controller.claim(2)
            assert (await worker.add_sample(0, 0, b"late", meta(1))).outcome is AddOutcome.FINISHED
    log = (guarded.directory / "redis.log").read_text()
    assert "DB loaded from append only file" in log
    assert "CRITICAL" not in log


async def test_a_url_is_a_login_of_its_own(guarded: RedisServer) -> None:
    def url(user: str) -> str:
        return f"redis://{user}:{PASSWORDS[user]}@{guarded.address}/0"

    controller = AsyncLedger(url("controller"), "job", retry_for_s=2.0)
    worker = AsyncLedger(url("worker"), "job", retry_for_s=2.0)
    async with controller, worker:
        await controller.claim(1)
        await worker.add_samples(samples(0))
        assert (await controller.close(1, 0, COMPLETE, SIZE)).status is CloseStatus.CLOSED
        with pytest.raises(ConfigError, match=f"the replay store at {guarded.address}/0 refuses this login"):
            await worker.close(1, 0, COMPLETE, SIZE)
        await controller.assign(1, 0, (0,))
    with SyncLedger(url("trainer"), "job") as trainer:
        trainer.reach(2.0)
        trainer.recover(1, 0)
        assert trainer.take(1, 0)[0].complete


@pytest.mark.parametrize("url", ["http://redis:6379", "redis://", "redis://host:port"])
def test_what_is_no_url_of_a_redis_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SyncLedger(url, "job")
    assert "redis://user:password@host:port" in caught.value.fix


def test_a_url_with_tls_and_a_database_is_understood_and_its_password_is_shown_nowhere() -> None:
    kept = connection.settings("rediss://me:pass%40word@redis.example:6380/3", None, None, None)
    assert (kept["host"], kept["port"], kept["db"], kept["ssl"]) == ("redis.example", 6380, 3, True)
    assert (kept["username"], kept["password"]) == ("me", "pass@word")
    assert connection.shown("rediss://me:secret@redis.example:6380/3?x=y") == "redis.example:6380/3"


async def test_a_workers_login_can_neither_close_nor_publish_nor_free(guarded: RedisServer) -> None:
    async with login(guarded, "controller") as controller, login(guarded, "worker") as worker:
        await controller.claim(1)
        await worker.add_samples(samples(0))
        with pytest.raises(ConfigError, match="login"):
            await worker.close(1, 0, COMPLETE, SIZE)
        with pytest.raises(ConfigError):
            await worker.claim(2)
        with SyncLedger(guarded.address, "job", username="worker", password=PASSWORDS["worker"]) as thief:
            with pytest.raises(ConfigError):
                thief.commit(1, 1)
            with pytest.raises(ConfigError):
                thief.recover(1, 1)
        snapshot = await controller.scan()
        assert (snapshot.closed, snapshot.low, snapshot.controller_fence) == ({}, 0, 1)


FORBIDDEN = [
    ("XADD", "{job}:ready", "1-0", "o", "complete"),
    ("HSET", "{job}:closed", "0", "complete"),
    ("HSET", "{job}:batches", "0", "1"),
    ("HSET", "{job}:meta", "low", "9"),
    ("HSET", "{other}:s:0", "p0", "x"),
    ("DEL", "{job}:s:0"),
    ("HDEL", "{job}:s:0", "p0"),
    ("UNLINK", "{job}:s:0"),
    ("EXPIRE", "{job}:s:0", "1"),
    ("FLUSHALL",),
    ("KEYS", "*"),
    ("CONFIG", "GET", "*"),
    ("ACL", "WHOAMI"),
    ("SCRIPT", "FLUSH"),
]


@pytest.mark.parametrize("command", FORBIDDEN, ids=" ".join)
def test_a_workers_login_is_refused_by_command_and_by_script(guarded: RedisServer, command: tuple[str, ...]) -> None:
    with redis.Redis(port=guarded.port, username="worker", password=PASSWORDS["worker"]) as raw:
        raw.hset("{job}:s:0", mapping={"p0": b"x", "m0": b"y"})
        with pytest.raises(redis_errors.NoPermissionError):
            raw.execute_command(*command)
        with pytest.raises(redis_errors.ResponseError):
            raw.eval("return redis.call(unpack(ARGV))", 0, *command)
        assert raw.hget("{job}:s:0", "p0") == b"x"


def test_nobody_gets_in_without_a_password(guarded: RedisServer) -> None:
    with redis.Redis(port=guarded.port, retry=no_retry(Retry)) as raw, pytest.raises(redis_errors.AuthenticationError):
        raw.ping()
    with pytest.raises(ConfigError, match="login"):
        SyncLedger(guarded.address, "job", username="trainer", password="wrong").run_id()


# ---- broken scripts

LUA_MUTANTS = [
    ("add_sample", "if stored then", "if false then"),
    ("add_sample", "< low or", "< low - 1 or"),
    ("close", "if stored then return", "if false then return"),
    ("commit", "tonumber(held) < step", "tonumber(held) <= step"),
    ("commit", "math.max(counter('committed'), step)", "step"),
    ("recover", "set('committed', math.min(tonumber(ARGV[3]), counter('committed')))", ""),
    ("take", "outcome == 'trained'", "false"),
    ("take", "members(ARGV[3])", "members('0')"),
    ("assign", "tonumber(ARGV[3]) < counter('committed')", "false"),
    ("assign", "redis.call('HGET', closed, group) == 'trained'", "false"),
    ("assign", "set('low', low)", ""),
    ("advance", "low > before", "true"),
]


@pytest.mark.parametrize(("name", "rule", "broken"), LUA_MUTANTS)
def test_a_broken_script_differs_from_the_model(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, name: str, rule: str, broken: str
) -> None:
    import hashlib

    from test_ledger_redis_model import differs

    whole = calls.script(name)
    assert rule.encode() in whole.text
    text = whole.text.replace(rule.encode(), broken.encode())
    mutant = calls.Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
    original = calls.script
    monkeypatch.setattr(calls, "script", lambda asked: mutant if asked == name else original(asked))
    assert differs(redis_server)
