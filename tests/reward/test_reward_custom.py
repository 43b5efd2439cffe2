"""The recipe's reward in processes that can be killed. All processes here are real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from areal.errors import DataError
from areal.reward.scorer_pool.pool import PoolSize
from areal.reward.verifiers.custom import CustomVerifier
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb

pytestmark = pytest.mark.component

RECIPE = """
    import os, signal, time
    from pathlib import Path

    HERE = Path(__file__).parent

    def reward(prompt, completions, prompt_ids, completion_ids, **row):
        act = completions.partition(":")[0]
        if act == "hang":
            (HERE / "hanging").touch()
            time.sleep(1000)
        if act == "spin":
            while True:
                pass
        if act == "die":
            os._exit(3)
        if act == "die-once" and not (HERE / "died").exists():
            (HERE / "died").touch()
            os._exit(3)
        if act == "killed-once" and not (HERE / "died").exists():
            (HERE / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "scatter":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:  # an orphan in a session of its own
                    (HERE / "writing").write_text(str(os.getpid()))
                    (HERE / "writing").rename(HERE / "child")
                    time.sleep(1000)
                os._exit(0)
            while not (HERE / "child").exists():
                time.sleep(0.01)
            os._exit(3) if completions.endswith("die") else time.sleep(1000)
        if act == "fork":
            if os.fork() == 0:
                (HERE / "child").write_text(str(os.getpid()))
                time.sleep(1000)
            time.sleep(1000)
        if act == "raise":
            return {}["missing"]
        if act == "exit":
            raise SystemExit(0)
        if act == "value":
            return eval(completions.partition(":")[2])
        if act == "pid":
            return float(os.getpid())
        if act == "print":
            print("to the log")
        if act == "arguments":
            return float((prompt, prompt_ids, completion_ids, row) == (
                "3142=", [0, 1, 2], [0, 1, 2, 3], {"answer": "x", "extra": [1]}))
        return float(completions == row["answer"])
"""

Make = Callable[..., CustomVerifier]


@pytest.fixture
async def custom(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[CustomVerifier] = []

    def make(
        source: str = RECIPE,
        deadline_s: float = 5.0,
        size: PoolSize | None = None,
        queue_s: float = 60,
        weights: dict[str, float] | None = None,
    ) -> CustomVerifier:
        recipe = tmp_path / "recipe.py"
        recipe.write_text(textwrap.dedent(source))
        made.append(CustomVerifier(recipe, deadline_s=deadline_s, size=size, queue_s=queue_s, weights=weights))
        return made[-1]

    yield make
    for verifier in made:
        await verifier.stop()


@pytest.fixture
async def verifier(custom: Make) -> CustomVerifier:
    made = custom(deadline_s=0.5, size=PoolSize())
    await made.start()
    return made


def kinds(results: list[pb.ScoreResult]) -> list[str]:
    return [result.WhichOneof("outcome") or "" for result in results]


async def test_the_function_gets_its_arguments_and_the_row(verifier: CustomVerifier, item) -> None:
    # A column named like an argument gives way to the argument.
    (result,) = await verifier.score([item("arguments", answer="x", extra=[1], prompt="the row's")])
    assert result.score == 1.0


async def test_scores_come_in_order_across_many_batches(verifier: CustomVerifier, item) -> None:
    async def batch(n: int) -> list[float]:
        results = await verifier.score([item(f"value:{n * 1000 + i}", answer="") for i in range(100)])
        return [result.score for result in results]

    answers = await asyncio.gather(*(batch(n) for n in range(10)))
    assert answers == [[float(n * 1000 + i) for i in range(100)] for n in range(10)]


async def test_an_exception_costs_its_item_and_carries_its_traceback(verifier: CustomVerifier, item) -> None:
    results = await verifier.score([item("a", answer="a"), item("raise"), item("b", answer="a"), item("exit")])
    assert kinds(results) == ["score", "fault", "score", "fault"]
    assert [results[0].score, results[2].score] == [1.0, 0.0]
    assert results[1].fault.kind == common.FAULT_KIND_DATA
    assert "KeyError" in results[1].fault.message
    assert 'recipe.py", line' in results[1].fault.traceback
    assert 'return {}["missing"]' in results[1].fault.traceback


@pytest.mark.parametrize("hang", ["hang", "spin"])
async def test_a_hang_is_killed_and_the_others_are_scored(verifier: CustomVerifier, item, hang: str) -> None:
    results = await verifier.score([item("a", answer="a"), item(hang), item("b", answer="b"), item("print", answer="")])
    assert kinds(results) == ["score", "fault", "score", "score"]
    assert [results[0].score, results[2].score, results[3].score] == [1.0, 1.0, 0.0]
    assert results[1].fault.kind == common.FAULT_KIND_DATA
    assert "within 0.5 s" in results[1].fault.message


async def test_each_item_has_a_deadline_of_its_own(custom: Make, item) -> None:
    verifier = custom(deadline_s=60, size=PoolSize())
    await verifier.start()
    (result,) = await asyncio.wait_for(verifier.score([item("hang", deadline_s=0.3)]), 60)
    assert "within 0.3 s" in result.fault.message


@pytest.mark.parametrize(
    ("value", "score"),
    [("True", 1.0), ("False", 0.0), ("3", 3.0), ("-0.5", -0.5), ("__import__('numpy').float32(0.5)", 0.5)],
)
async def test_numbers_are_scores(verifier: CustomVerifier, item, value: str, score: float) -> None:
    (result,) = await verifier.score([item(f"value:{value}")])
    assert (result.WhichOneof("outcome"), result.score) == ("score", score)


@pytest.mark.parametrize("value", ["None", "'1'", "float('nan')", "float('inf')", "[1.0]", "10**400", "1j"])
async def test_anything_else_is_a_fault_of_the_data(verifier: CustomVerifier, item, value: str) -> None:
    (result,) = await verifier.score([item(f"value:{value}")])
    assert result.fault.kind == common.FAULT_KIND_DATA
    assert "returned" in result.fault.message


async def test_an_item_that_ends_its_process_twice_is_to_blame(verifier: CustomVerifier, item) -> None:
    results = await verifier.score([item("a", answer="a"), item("die"), item("b", answer="b")])
    assert [results[0].score, results[2].score] == [1.0, 1.0]
    assert results[1].fault.kind == common.FAULT_KIND_DATA
    assert "exit code 3" in results[1].fault.message


async def test_a_process_that_died_once_is_no_fault_at_all(verifier: CustomVerifier, item) -> None:
    (result,) = await verifier.score([item("die-once", answer="die-once")])
    assert (result.WhichOneof("outcome"), result.score) == ("score", 1.0)


async def test_an_item_whose_fresh_process_is_killed_twice_is_to_blame_and_the_others_are_scored(
    verifier: CustomVerifier, item
) -> None:
    good = [item(str(n), answer=str(n)) for n in range(20)]
    results = await asyncio.wait_for(verifier.score([*good[:10], item("killed"), *good[10:]]), 60)
    assert [result.score for result in results if result.WhichOneof("outcome") == "score"] == [1.0] * 20
    assert results[10].fault.kind == common.FAULT_KIND_DATA
    assert "killed twice (SIGKILL): out of memory?" in results[10].fault.message
    assert "GiB" in results[10].fault.message


async def test_a_process_killed_once_from_outside_costs_nobody_a_score(verifier: CustomVerifier, item) -> None:
    (result,) = await verifier.score([item("killed-once", answer="killed-once")])
    assert (result.WhichOneof("outcome"), result.score) == ("score", 1.0)


async def test_an_idle_process_that_dies_is_replaced_unnoticed(verifier: CustomVerifier, item) -> None:
    (before,) = await verifier.score([item("pid")])
    os.kill(int(before.score), signal.SIGKILL)
    (after,) = await verifier.score([item("pid")])
    assert after.WhichOneof("outcome") == "score"
    assert after.score != before.score


async def test_what_user_code_started_dies_with_its_process(verifier: CustomVerifier, item, tmp_path: Path) -> None:
    (result,) = await verifier.score([item("fork")])
    assert result.fault.kind == common.FAULT_KIND_DATA
    assert ends(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("then", ["hang", "die"])
async def test_daemons_of_user_code_die_with_its_process(custom: Make, item, tmp_path: Path, then: str) -> None:
    verifier = custom(deadline_s=2.0, size=PoolSize())
    await verifier.start()
    (result,) = await verifier.score([item(f"scatter:{then}")])
    assert result.fault.kind == common.FAULT_KIND_DATA
    assert ends(int((tmp_path / "child").read_text()))


async def test_stopping_the_service_ends_daemons_of_user_code(custom: Make, item, tmp_path: Path) -> None:
    verifier = custom(deadline_s=60, size=PoolSize())
    await verifier.start()
    hanging = asyncio.create_task(verifier.score([item("scatter:hang")]))
    assert await asyncio.to_thread(appears, tmp_path / "child")
    await verifier.stop()
    await hanging
    assert ends(int((tmp_path / "child").read_text()))


def appears(path: Path) -> bool:
    """Whether a file is there within ten seconds."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return path.exists()


def ends(pid: int) -> bool:
    """Whether a process is gone, or a zombie for init to reap, within ten seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


async def test_nothing_free_in_time_is_an_infrastructure_fault(custom: Make, item, tmp_path: Path) -> None:
    verifier = custom(deadline_s=30, size=PoolSize(), queue_s=0.5)
    await verifier.start()
    hanging = asyncio.create_task(verifier.score([item("hang")]))
    assert await asyncio.to_thread(appears, tmp_path / "hanging")
    (waiting,) = await verifier.score([item("a", answer="a")])
    assert waiting.fault.kind == common.FAULT_KIND_INFRA
    assert "for 0.5 s" in waiting.fault.message
    await verifier.stop()
    (stopped,) = await hanging
    assert stopped.fault.kind == common.FAULT_KIND_INFRA


async def test_slow_items_get_more_processes(custom: Make, item) -> None:
    verifier = custom(size=PoolSize(least=1, most=4))
    await verifier.start()
    slow = "value:__import__('time').sleep(0.2) or __import__('os').getpid()"
    processes: set[float] = set()
    until = time.monotonic() + 60  # a busy machine takes seconds to start one more
    while len(processes) < 2 and time.monotonic() < until:
        results = await verifier.score([item(slow) for _ in range(12)])
        assert kinds(results) == ["score"] * 12
        processes |= {result.score for result in results}
    assert len(processes) > 1


async def test_a_recipe_that_fails_to_import_is_refused_at_the_start(custom: Make) -> None:
    with pytest.raises(DataError, match="ZeroDivisionError") as raised:
        await custom("x = 1 / 0").start()
    assert "recipe.py:1" in raised.value.message
    with pytest.raises(DataError, match="defines no reward"):
        await custom("x = 1").start()


def test_children_die_with_a_killed_service(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(
        "import os\ndef reward(prompt, completions, prompt_ids, completion_ids, **row): return float(os.getpid())\n"
    )
    service = textwrap.dedent("""
        import asyncio, sys
        from pathlib import Path
        from areal.reward.verifiers.custom import CustomVerifier
        from areal.v1 import reward_pb2 as pb
        async def main():
            verifier = CustomVerifier(Path(sys.argv[1]), deadline_s=5)
            await verifier.start()
            (result,) = await verifier.score([pb.ScoreItem(row_json=b"{}")])
            print(int(result.score), flush=True)
            await asyncio.Event().wait()
        asyncio.run(main())
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", service, str(tmp_path / "recipe.py")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait(60)
    assert ends(child)


PARTS = """
    def reward(prompt, completions, prompt_ids, completion_ids, **row):
        return eval(completions)
"""


async def test_parts_of_a_reward_are_summed_and_told_by_name(custom: Make, item) -> None:
    verifier = custom(PARTS)
    await verifier.start()
    whole, odd, empty, nan = await verifier.score(
        [item("{'correct': True, 'format': 0.25}"), item("{'a b': 1.0}"), item("{}"), item("{'correct': float('nan')}")]
    )
    assert whole.verdict.score == 1.25
    assert dict(whole.verdict.figures) == {"correct": 1.0, "format": 0.25}
    assert kinds([odd, empty, nan]) == ["fault"] * 3
    assert "'a b'" in odd.fault.message
    assert "no part any" in empty.fault.message
    assert "part 'correct'" in nan.fault.message


async def test_weights_count_the_parts_that_they_name_and_miss_none(custom: Make, item) -> None:
    verifier = custom(PARTS, weights={"correct": 2.0, "format": 0.5})
    await verifier.start()
    whole, missing, number = await verifier.score(
        [item("{'correct': 1, 'format': 1, 'length': 400}"), item("{'correct': 1}"), item("0.75")]
    )
    assert whole.verdict.score == 2.5
    assert whole.verdict.figures["length"] == 400.0
    assert kinds([missing]) == ["fault"]
    assert "no part format" in missing.fault.message
    assert number.score == 0.75
