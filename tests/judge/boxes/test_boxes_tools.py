"""The tool workflow and its example, with a scripted model: what tools say, what the repair earns, who can't cheat."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from areal.clients.boxes import BoxClient
from areal.errors import InfraError
from areal.workflow.base import Outcome
from areal.workflow.box_tools import BoxToolsWorkflow
from areal.workflow.recipe import load_recipe
from boxes.conftest import Served

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ROWS = [json.loads(line) for line in (EXAMPLES / "swe_tiny.jsonl").read_text().splitlines()]
REPAIR = "sed -i 's/ (len(numbers) - 1)/ len(numbers)/' means.py && python3 -m unittest 2>&1 | tail -1"


def call(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": name, "type": "function", "function": function}]}


DONE = {"role": "assistant", "content": "done"}


@dataclass
class Scripted:
    """An engine whose model says what it is told to, turn by turn; it keeps what it read and the reward."""

    answers: list[dict[str, Any]]
    boxes: BoxClient
    read: list[dict[str, Any]] = field(default_factory=list)
    reward: Any = None

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Scripted]:
        with self._served() as self.base_url:
            self.api_key = "key"
            yield self

    def box(self, **wanted: Any) -> Any:
        return self.boxes.box(**wanted)

    async def episode(self, reward: Any = None) -> Any:
        self.reward = reward
        return self

    @contextlib.contextmanager
    def _served(self) -> Iterator[str]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                scripted.read.append(body)
                answer = scripted.answers[len(scripted.read) - 1]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"choices": [{"message": answer}]}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

    @property
    def heard(self) -> list[str]:
        """What tools said, in order."""
        return [message["content"] for message in self.read[-1]["messages"] if message["role"] == "tool"]


@pytest.fixture(scope="module")
def workflow() -> BoxToolsWorkflow:
    made = load_recipe(EXAMPLES / "swe_tiny.py").workflows["swe-tiny"](max_turns=8)
    assert isinstance(made, BoxToolsWorkflow)
    return made


Play = Callable[..., Awaitable[Scripted]]


@pytest.fixture
def played(workflow: BoxToolsWorkflow, client: BoxClient) -> Play:
    async def play(*answers: dict[str, Any], row: int = 0) -> Scripted:
        engine = Scripted([*answers, DONE], client)
        await workflow.arun_episode(engine, ROWS[row])  # type: ignore[arg-type]
        return engine

    return play


async def test_a_repair_earns_by_calls_that_the_agent_never_saw(played: Play) -> None:
    engine = await played(
        call("bash", command="ls; python3 -m unittest 2>&1 | tail -1"),
        call("bash", command=REPAIR),
        call("python", code="import means\nmeans.mean([2, 4])"),
    )
    assert engine.heard == ["means.py\ntest_numbers.py\nFAILED (failures=1)", "OK", "3.0"]
    assert engine.reward == 1.0
    assert {tool["function"]["name"] for tool in engine.read[0]["tools"]} == {"bash", "python"}
    seen = json.dumps(engine.read)
    assert "5.0" not in seen
    assert "2.5" not in seen


async def test_an_agent_that_edits_the_tests_earns_nothing(played: Play) -> None:
    passes = "sed -i 's/, 2.0)/, 3.0)/' test_numbers.py && python3 -m unittest 2>&1 | tail -1"
    engine = await played(call("bash", command=passes))
    assert engine.heard == ["OK"]
    assert engine.reward == 0.0


async def test_nothing_done_earns_what_was_right_before(played: Play) -> None:
    assert (await played()).reward == 0.0
    assert (await played(row=3)).reward == pytest.approx(2 / 3)


CHEATS = {
    "a module that prints what looks like answers": "import json\nprint(json.dumps([9.0, 9.0, 9.0]))\nimport os\n"
    "os._exit(0)",
    "values equal to everything": "class Any(float):\n    def __eq__(self, other):\n        return True\n"
    "def mean(numbers):\n    return Any(1)",
    "a json module of its own": "import json\njson.dumps = lambda value: '[0, 0, 0]'\ndef mean(numbers):\n    return 0",
    "a module that never returns": "import os\nos.kill(os.getppid(), 9)",
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_a_module_that_forges_its_judgement_earns_nothing(played: Play, cheat: str) -> None:
    engine = await played(call("python", code=f"open('means.py', 'w').write({cheat!r})"))
    reward = engine.reward.reward if isinstance(engine.reward, Outcome) else engine.reward
    assert reward == 0.0


async def test_tools_that_do_not_exist_and_calls_that_are_none_are_told_so(played: Play) -> None:
    engine = await played(call("browse", url="x"), call("bash", words="x"), call("bash", command="exit 3"))
    assert engine.heard[0].startswith("error: call bash")
    assert engine.heard[1].startswith("error: call bash")
    assert engine.heard[2] == "[exit code 3]\n[what it had in memory is lost]"


async def test_an_agent_that_ends_its_box_is_scored_and_a_lost_box_is_not(
    served: Served, client: BoxClient, workflow: BoxToolsWorkflow, played: Play
) -> None:
    engine = await played(call("bash", command="kill -9 $PPID; sleep 1000"))
    assert isinstance(engine.reward, Outcome)
    assert engine.reward.reward == 0.0
    assert "program" in engine.reward.note
    stuck = Scripted([call("bash", command="sleep 1000"), DONE], client)
    playing = asyncio.create_task(workflow.arun_episode(stuck, ROWS[0]))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while not stuck.read or not served.stack.registry.live:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for profile in served.stack.sandbox._profiles.values():
        for zygote in profile.zygotes():
            zygote.process.kill()
    with pytest.raises(InfraError):
        await playing
    assert stuck.reward is None
