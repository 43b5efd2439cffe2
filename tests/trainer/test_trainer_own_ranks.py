"""Frozen models on ranks of their own: the losses of ones beside the policy, and an end that says what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from areal.dataflow.own import StageInputs
from areal.errors import ConfigError, DataError, ExitCode, InfraError
from areal.observe.waits import WaitRegistry
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.group import place_of
from areal_trainer.engine.link import Link
from areal_trainer.engine.message import Message, decoded, encoded
from areal_trainer.frozen_model import Question
from areal_trainer.own_ranks import Held, OwnRanks, serve
from support import frozen_ranks
from support.redis_server import free_port
from support.trainer_parts import batch
from torch._C._distributed_c10d import HashStore


def test_the_last_processes_are_a_world_of_their_own():
    assert [place_of(at, 5, 2) for at in range(5)] == [
        (0, 3, False), (1, 3, False), (2, 3, False), (0, 2, True), (1, 2, True),
    ]  # fmt: skip
    assert place_of(3, 4, 0) == (3, 4, False)
    with pytest.raises(ConfigError, match="of 2 trainer processes 2 would hold frozen models, and none the policy"):
        place_of(0, 2, 2)


def test_a_message_is_the_same_on_the_other_side():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros(0, np.int64), "b": np.array([True])}
    found = decoded(encoded(Message({"kind": "ask", "words": "η"}, arrays)))
    assert found.header == {"kind": "ask", "words": "η"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype


def links() -> list[Link]:
    """Both ends of one."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda frozen: Link(store, frozen=frozen, timeout_s=20.0), (False, True)))


def alone(link: Link) -> Any:
    """The only rank of its world."""
    return SimpleNamespace(first=True, world_size=1, data_rank=0, data_size=1, link=link, tell=lambda message: message)


def square(micros, tokens):
    """A model that thinks of a token's id alone."""
    found = torch.zeros(tokens)
    for micro in micros:
        found[micro.token_index] = -(micro.targets.float() ** 2)
    return found


def cut(tokens, chosen, predicted):
    return rank_micro_batches(
        tokens, chosen, predicted, rank=0, world_size=1, micro_batch_tokens=64, pack_length=None
    )  # fmt: skip


@pytest.fixture
def beside():
    """(the policy's side, starts the frozen models' side with what loads them, how that ended)."""
    here, there = links()
    ended: list[object] = []
    threads: list[threading.Thread] = []

    def start(load: Callable[[], Any], stages: Any = None) -> None:
        def run() -> None:
            try:
                ended.append(serve(alone(there), load, pack_length=None, stages=stages))
            except Exception as error:
                ended.append(error)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[0].start()

    asking = OwnRanks(alone(here), WaitRegistry("trainer"), deadline_s=20.0)

    def end() -> list[object]:
        threads[0].join(20.0)
        return ended

    yield asking, start, end
    asking.close()


def test_two_questions_are_asked_before_an_answer_is_awaited(beside):
    asking, start, end = beside
    start(lambda: {"reference": Held(square, 24), "teacher": Held(lambda m, t: 2 * square(m, t), 30)})
    asking.ready(20.0)
    assert asking.vocabulary == {"reference": 24, "teacher": 30}
    tokens = batch(3, 4)
    chosen = np.arange(tokens.sequences) != 1
    question = Question(tokens, chosen, 64, cut)
    first, second = asking.model("reference").ask(question), asking.model("teacher").ask(question)
    expected = square(question.micros(), tokens.tokens)
    assert expected.any()
    torch.testing.assert_close(first(), expected, rtol=0, atol=0)
    torch.testing.assert_close(second(), 2 * expected, rtol=0, atol=0)
    asking.close()
    assert end() == [ExitCode.DONE]


def test_what_goes_wrong_while_they_are_loaded_is_raised_as_what_it_is(beside):
    asking, start, end = beside

    def load() -> Any:
        raise DataError("the teacher t has another tokenizer than the student", fix="take one family")

    start(load)
    with pytest.raises(DataError, match="the ranks of the frozen models failed: the teacher t has another") as refused:
        asking.ready(20.0)
    assert refused.value.fix == "take one family"
    assert isinstance(end()[0], DataError)


def test_a_rank_that_fails_at_a_question_ends_the_step_with_its_words(beside):
    asking, start, _ = beside

    def fails(micros, tokens):
        raise torch.OutOfMemoryError("no room for a chunk of logits")

    start(lambda: {"reference": Held(fails, 24)})
    asking.ready(20.0)
    answer = asking.model("reference").ask(Question(batch(2), np.ones(8, np.bool_), 64, cut))
    with pytest.raises(InfraError, match="failed: OutOfMemoryError: no room for a chunk of logits"):
        answer()


def test_a_side_that_is_silent_or_gone_is_named_and_a_policy_that_is_gone_ends_the_other():
    here, there = links()
    asking = OwnRanks(alone(here), WaitRegistry("trainer"), deadline_s=0.2)
    answer = asking.model("reference").ask(Question(batch(2), np.ones(8, np.bool_), 64, cut))
    with pytest.raises(InfraError, match="the first rank of the frozen models is gone, or was silent for 0 s"):
        answer()
    del there
    here, there = links()
    del here
    assert serve(alone(there), lambda: {"reference": Held(square, 24)}, pack_length=None) == ExitCode.DONE


def test_a_recipe_s_stage_is_run_over_there_and_fails_as_the_recipe_s_fault(beside):
    asking, start, end = beside
    stages = {"double": lambda columns: {"total": columns["rewards"] * 2}, "fails": lambda columns: columns["scores"]}
    start(dict, stages)
    asking.ready(20.0)
    inputs = StageInputs({"rewards": np.array([1.0, 0.5])}, np.array([0, 3, 5]))
    np.testing.assert_array_equal(asking.stage("double")(inputs)["total"], [2.0, 1.0])
    with pytest.raises(DataError, match="failed: the recipe's stage fails fails: KeyError: 'scores'"):
        asking.stage("fails")(inputs)
    assert isinstance(end()[0], DataError)


@pytest.mark.component
@pytest.mark.timeout(300)
def test_a_rank_of_its_own_says_what_the_model_says_beside_the_policy_and_its_death_is_named(model_path):
    path = os.pathsep.join([str(Path(frozen_ranks.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "support.frozen_ranks", str(model_path), str(free_port())],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["apart"] < 1e-6 < -found["lowest"]
    np.testing.assert_allclose(found["far"], found["near"], rtol=0, atol=1e-6)
    assert min(kl for _, _, kl in found["near"][1:]) > 1e-4, "the reference takes part"
    assert found["judged"] == 0.0 < 0.1 < found["moved"], "scores of a recipe's stage there are what advantages are of"
    assert (found["world"], found["vocabulary"], found["code"]) == (1, 24, 9)
    assert "the first rank of the frozen models is gone" in found["died"]
