"""Conversations with a driver in a cell."""

from __future__ import annotations

import asyncio
import socket

import pytest
from areal.errors import ConfigError
from areal_judge.sandbox.host.runner import Sandbox, SandboxRefusalError
from areal_judge.sandbox.host.session import CellSession, FrameError
from areal_judge.sandbox.values import Driver, Ending, Limits, ProgramRun, PythonScript

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]


def driver(payload: bytes = b"", **limits: float) -> ProgramRun:
    return ProgramRun(Driver("talking_driver", payload), limits=Limits(**{"wall_s": 20.0, "cpu_s": 10.0} | limits))  # type: ignore[arg-type]


async def test_frames_go_back_and_forth_and_the_end_is_clean(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"re:")) as session:
        for frame in (b"abc", b"", b"x" * 500_000):
            await session.send(frame)
            assert await session.receive(10) == b"re:" + frame[::-1]
        ended = await session.finish(10)
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, 3)
    assert ended.stdout == b"heard 3\nheard 0\nheard 500000\n"
    assert ended.stderr == b"done\n"


async def test_a_silent_driver_costs_its_timeout_and_is_killed_at_the_end(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"stays")) as session:
        with pytest.raises(TimeoutError):
            await session.receive(0.05)
        ended = await session.finish(0.05)
    assert ended.ending is Ending.CANCELLED


async def test_a_killed_driver_says_so(sandbox: Sandbox) -> None:
    async with sandbox.session(driver()) as session:
        session.kill()
        assert await session.receive(10) is None
        assert (await session.finish()).ending is Ending.CANCELLED


async def test_a_driver_that_dies_ends_the_line(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"dies")) as session:
        assert await session.receive(10) is None
        await session.send(b"to nobody")
        ended = await session.finish(10)
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, 7)


async def test_an_exception_of_a_driver_is_exit_code_1(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"raises")) as session:
        assert await session.receive(10) is None
        ended = await session.finish(10)
    assert ended.exit_code == 1
    assert b"on purpose" in ended.stderr


@pytest.mark.parametrize("payload", [b"huge", b"cut"])
async def test_what_is_no_frame_raises(sandbox: Sandbox, payload: bytes) -> None:
    async with sandbox.session(driver(payload)) as session:
        with pytest.raises(FrameError):
            await session.receive(10)


async def test_a_frame_longer_than_the_bound_is_not_sent(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(), max_frame_bytes=1000) as session:
        with pytest.raises(FrameError):
            await session.send(b"x" * 1001)


async def test_the_wall_limit_holds_in_a_session(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"stays", wall_s=0.5)) as session:
        assert await session.receive(10) is None
        assert (await session.finish(10)).ending is Ending.WALL_LIMIT


async def test_leaving_a_session_ends_its_run(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"stays")):
        pass
    assert sandbox.counters().running == 0


async def test_an_error_in_the_holder_ends_the_run(sandbox: Sandbox) -> None:
    with pytest.raises(ZeroDivisionError):
        async with sandbox.session(driver(b"stays")):
            raise ZeroDivisionError
    assert sandbox.counters().running == 0


async def test_sessions_beside_each_other_do_not_mix(sandbox: Sandbox) -> None:
    async def one(number: int) -> bool:
        async with sandbox.session(driver(b"%d:" % number)) as session:
            for _ in range(5):
                await session.send(b"ab")
                if await session.receive(20) != b"%d:ba" % number:
                    return False
            return (await session.finish(10)).exit_code == 3

    assert all(await asyncio.gather(*(one(number) for number in range(12))))


async def test_a_driver_is_not_run_without_a_holder(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxRefusalError):
        await sandbox.run(driver())


async def test_a_driver_that_was_never_imported_is_nothing_to_run(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError):
        async with sandbox.session(ProgramRun(Driver("os"))):
            pass


async def test_a_script_has_no_line_to_anybody(sandbox: Sandbox) -> None:
    with pytest.raises(ConfigError):
        async with sandbox.session(ProgramRun(PythonScript("pass"))):
            pass


async def test_a_channel_that_takes_over_a_closed_ones_descriptor_is_read(sandbox: Sandbox) -> None:
    async with sandbox.session(driver(b"stays")) as session:
        number = session._channel.fileno()
        reading = asyncio.create_task(session.receive(60))
        await asyncio.sleep(0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert ours.fileno() == number
        successor = CellSession(ours, asyncio.get_running_loop().create_future(), lambda reason: None, 1 << 20)
        receiving = asyncio.create_task(successor.receive(10))
        await asyncio.sleep(0.05)
        theirs.sendall(b"\x02\x00\x00\x00ok")
        assert await receiving == b"ok"
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
