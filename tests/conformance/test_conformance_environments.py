"""Adapters of environments against the real packages, each in an environment of its own (tools/venv), offline."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from areal.errors import DataError, InfraError
from areal.workflow.interpreter.client import Target
from support.played import ROOT, opened, play, python_of
from support.redis_server import free_port

pytestmark = [pytest.mark.component, pytest.mark.nightly, pytest.mark.timeout(300)]
SERVER = Path(__file__).with_name("openenv_server.py")


@pytest.fixture(scope="session")
def python() -> Callable[[str], str]:
    """The interpreter that has a package, made once in the checkout."""

    def made(package: str) -> str:
        name = f"environment-{package}"
        subprocess.run(["tools/venv", name], cwd=ROOT, check=True, timeout=280)
        return python_of(name)

    return made


# ---- TextArena


async def test_a_game_of_textarena_is_won_by_its_rules_and_is_the_same_for_the_same_row(python):
    target = Target("environment", "textarena", python("textarena"), None, {"game": "GuessTheNumber-v0"})
    async with opened(target) as make:

        async def ask(row: dict[str, int]) -> tuple[list[str], float, bool]:
            low, high, environment = 1, 20, await make(row)
            first, _ = await environment.reset()
            seen = [first]
            while True:
                middle = (low + high) // 2
                said, reward, over, *_ = await environment.step(f"[{middle}]")
                seen.append(said)
                if over:
                    await environment.close()
                    return seen, reward, over
                low, high = (middle + 1, high) if "higher" in said.split("]")[-1] else (low, middle - 1)

        games = await asyncio.gather(*(ask({"seed": seed}) for seed in (1, 2, 3) for _ in range(4)))
    for seed in range(3):
        assert len({json.dumps(game) for game in games[4 * seed : 4 * seed + 4]}) == 1, "all samples play one game"
    assert len({json.dumps(game) for game in games}) > 1, "other rows play other games"
    for seen, reward, over in games:
        assert (reward, over) == (1.0, True)
        assert "Guess The Number" in seen[0]
        assert all("Guess The Number" not in text for text in seen[1:]), "a turn tells what is new alone"


async def test_a_game_for_two_is_refused_in_words(python):
    target = Target("environment", "textarena", python("textarena"), None, {"game": "TicTacToe-v0"})
    async with opened(target) as make:
        with pytest.raises(DataError, match="can't be played by one player"):
            await play(await make({"seed": 1}), [])


# ---- reasoning-gym


def rows_of(interpreter: str) -> str:
    """Four entries, as JSON lines, that the package makes."""
    program = (
        "import json, reasoning_gym\n"
        "for entry in reasoning_gym.create_dataset('basic_arithmetic', size=4, seed=5): print(json.dumps(entry))"
    )
    done = subprocess.run([interpreter, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    return done.stdout


async def test_a_task_of_reasoning_gym_scores_answers_as_it_does_itself(python):
    interpreter = python("reasoning-gym")
    rows = rows_of(interpreter)
    target = Target("environment", "reasoning-gym", interpreter, None, {"tries": 2})
    async with opened(target) as make:
        for line in rows.splitlines():
            row = json.loads(line)
            seen, total, over = await play(await make(row), ["wrong", row["answer"]])
            assert seen[0] == row["question"]
            assert (total, over) == (1.0, True)
            seen, total, over = await play(await make(row), ["wrong", "wrong"])
            assert total < 0.2
            assert (len(seen), over) == (3, True)


# ---- OpenEnv


@pytest.fixture
def server(python: Callable[[str], str]) -> Iterator[Callable[[int], tuple[str, subprocess.Popen[bytes]]]]:
    """Starts OpenEnv's server with so many sessions: its URL and its process."""
    started: list[subprocess.Popen[bytes]] = []

    def start(sessions: int) -> tuple[str, subprocess.Popen[bytes]]:
        port = free_port()
        process = subprocess.Popen([python("openenv"), "-I", str(SERVER), str(port), str(sessions)])
        started.append(process)
        return f"http://127.0.0.1:{port}", process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def until_up(make, row):  # the first session that the server takes
    async with asyncio.timeout(120):
        while True:
            try:
                return await play(await make(row), [str(row["seed"])])
            except InfraError:
                await asyncio.sleep(0.2)


async def test_sessions_of_openenv_are_apart_and_a_lost_server_is_infrastructure(python, server):
    url, process = server(32)
    target = Target("environment", "openenv", python("openenv"), None, {"url": url, "observation": "text"})
    async with opened(target) as make:
        assert await until_up(make, {"seed": 7}) == (["a digit?", "yes"], 1.0, True)
        games = [await make({"seed": seed}) for seed in range(10)]
        played = await asyncio.gather(*(play(game, ["3", "4", "5"]) for game in games))
        assert [reward for _, reward, _ in played] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
        assert all(over for _, _, over in played)
        game = await make({"seed": 4})
        await game.reset()
        await game.step("1")
        process.kill()
        await asyncio.to_thread(process.wait)
        with pytest.raises(InfraError):
            await game.step("4")


async def test_a_full_server_is_infrastructure_and_its_next_session_is_taken(python, server):
    url, _ = server(1)
    target = Target("environment", "openenv", python("openenv"), None, {"url": url, "observation": "text"})
    async with opened(target) as make:
        await until_up(make, {"seed": 1})
        held = await make({"seed": 2})
        async with asyncio.timeout(60):
            while True:  # the server gives a slot back after the close
                try:
                    await held.reset()
                    break
                except InfraError:
                    await asyncio.sleep(0.1)
        with pytest.raises(InfraError, match="CAPACITY"):
            await (await make({"seed": 3})).reset()
        await held.close()
        assert await until_up(make, {"seed": 3}) == (["a digit?", "yes"], 1.0, True)
