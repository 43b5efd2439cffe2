"""The workflow that plays an environment: tokens, rewards, ends, and what an environment returns wrongly."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from areal.errors import DataError
from areal.workflow import EnvironmentWorkflow, GenerationResult, TokenSpan
from areal.workflow.recipe import load_recipe
from areal.workflow.rlvr import prompt_of
from areal.workflow.tokenizer import Tokenizer
from support.char_tokenizer import TEMPLATE, write_tokenizer

OVER = ("", 0.25, True, False, {})


class Scripted:
    """Environment that gives a list of steps; notes the actions and whether it was closed."""

    def __init__(self, steps: list[Any], first: Any = ("21=", {})) -> None:
        self.steps, self.first = iter(steps), first
        self.actions: list[str] = []
        self.threads: set[int] = set()
        self.closed = False

    def reset(self) -> Any:
        return self.first

    def step(self, action: str) -> Any:
        self.actions.append(action)
        self.threads.add(threading.get_ident())
        return next(self.steps)

    def close(self) -> None:
        self.closed = True


class Awaited(Scripted):
    """The same, as coroutines."""

    async def step(self, action: str) -> Any:  # type: ignore[override]
        return super().step(action)


class Engine:
    """Answers `1`, `2`, … with an end token each; from `silent_after` on there is no room."""

    def __init__(self, tokenizer: Tokenizer, silent_after: int = 99) -> None:
        self.tokenizer, self._silent_after, self._asked = tokenizer, silent_after, 0

    def prompt(self, row: Any) -> Any:
        return prompt_of(row, self.tokenizer)

    async def agenerate(self, request: Any) -> GenerationResult:
        self._asked += 1
        text = "" if self._asked > self._silent_after else str(self._asked)
        ids = [*self.tokenizer.encode(text).tolist(), *([1] if text else [])]
        spans = (TokenSpan(0, len(ids), "1.f1", "s"),) if ids else ()
        return GenerationResult(np.array(ids, "<i4"), np.full(len(ids), -1.0, "<f4"), spans, "stop")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_tokenizer(tmp_path_factory.mktemp("chat"), template=TEMPLATE))


async def play(environment: Scripted, engine: Engine, max_turns: int = 9) -> tuple[str, float]:
    class Played(EnvironmentWorkflow):
        def make(self, row: dict[str, Any]) -> Any:
            return environment

    episode = await Played(max_turns=max_turns).arun_episode(engine, {})  # type: ignore[arg-type]
    assert episode is not None
    [sequence] = episode.sequences
    text = engine.tokenizer.decode(sequence.input_ids.tolist(), skip_special=False)
    assert sequence.loss_mask.sum() == 2 * (text.count("[EOS]")), "the answers and their ends, nothing else"
    return text, sequence.reward


@pytest.mark.parametrize("kind", [Scripted, Awaited])
async def test_observations_are_turns_and_rewards_add_up(chat: Tokenizer, kind: type[Scripted]) -> None:
    environment = kind([("ab", 0.5, False, False, {}), OVER])
    text, reward = await play(environment, Engine(chat))
    assert text == "<user>21=<assistant>1[EOS]<user>ab<assistant>2[EOS]"
    assert (reward, environment.actions, environment.closed) == (0.75, ["1", "2"], True)
    on_the_loop = threading.get_ident() in environment.threads
    assert on_the_loop == (kind is Awaited), "a plain function may block, so it has a thread"


@pytest.mark.parametrize(("max_turns", "silent_after", "reward"), [(2, 99, 1.0), (9, 1, 0.5)])
async def test_turns_and_tokens_bound_an_episode(
    chat: Tokenizer, max_turns: int, silent_after: int, reward: float
) -> None:
    environment = Scripted([("ab", 0.5, False, False, {})] * 5)
    assert (await play(environment, Engine(chat, silent_after), max_turns))[1] == reward
    assert environment.closed


@pytest.mark.parametrize("first", ["21=", ("21=",), (21, {}), None])
async def test_a_wrong_reset_is_named(chat: Tokenizer, first: Any) -> None:
    environment = Scripted([], first)
    with pytest.raises(DataError, match=r"reset\(\) returned"):
        await play(environment, Engine(chat))
    assert environment.closed


@pytest.mark.parametrize(
    "step", [("a", 1.0, True), ("a", float("nan"), True, False, {}), (1, 1.0, True, False, {}), ("a", 1.0, 1, 0, {})]
)
async def test_a_wrong_step_is_named(chat: Tokenizer, step: Any) -> None:
    with pytest.raises(DataError, match=r"step\(\) returned"):
        await play(Scripted([step]), Engine(chat))


def test_a_workflow_that_makes_no_environment_is_refused_when_the_recipe_is_read(tmp_path: Any) -> None:
    file = tmp_path / "recipe.py"
    file.write_text("from areal.workflow import EnvironmentWorkflow\nclass Mine(EnvironmentWorkflow): pass\n")
    with pytest.raises(DataError, match="workflow Mine doesn't define make"):
        load_recipe(file)
