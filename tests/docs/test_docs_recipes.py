"""What recipes may define and call is on the pages, with its arguments, and what the pages show runs."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from textwrap import indent
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import numpy as np
import pytest
from areal.clients.boxes import Box
from areal.dataflow.builtin import graph_of
from areal.dataflow.own import own_graph, stand_in
from areal.spec import load_job
from areal.spec.model_families import COMPARED, EMBEDDED
from areal.workflow.base import AgentSession, Engine
from areal.workflow.recipe import Recipe, load_recipe
from areal.workflow.rlvr import prompt_of
from areal.workflow.tokenizer import Tokenizer
from support.char_tokenizer import TEMPLATE, write_tokenizer
from support.listed_engine import Listed

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
FILES = ("LICENSE", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def test_every_call_of_a_training_loop_is_described():
    pytest.importorskip("torch")
    from areal_trainer.actor import Actor
    from areal_trainer.ledger_batches import TrainContext
    from areal_trainer.rollout import Rollout

    page = (DOCS / "workflows.md").read_text()
    for name, owner in (("rollout", Rollout), ("actor", Actor)):
        for method, function in inspect.getmembers(owner, inspect.isfunction):
            if method.startswith("_"):
                continue
            described = re.search(rf"`{name}\.{method}\(([^)]*)\)", page)
            assert described, f"{name}.{method}"
            given = [word.split("=")[0].strip() for word in described[1].split(",") if word.strip()]
            takes = [
                argument
                for argument, parameter in inspect.signature(function).parameters.items()
                if argument != "self" and parameter.kind is not parameter.KEYWORD_ONLY
            ]
            assert given == takes, f"{name}.{method}"
    for field in fields(TrainContext):
        assert f"`{field.name}" in page


def test_the_architectures_of_the_engine_are_named():
    page = (DOCS / "models.md").read_text()
    assert all(f"`{name}`" in page for name in (*EMBEDDED, *COMPARED))


async def test_the_workflow_on_the_page_makes_an_episode_of_one_answer(tmp_path):
    (source,) = [text for text in BLOCKS.findall((DOCS / "workflows.md").read_text()) if "RolloutWorkflow" in text]
    (tmp_path / "recipe.py").write_text(source)
    (shown,) = load_recipe(tmp_path / "recipe.py").workflows.values()
    engine = Listed(Tokenizer.from_dir(write_tokenizer(tmp_path)), [("12", "stop"), ("", "stop")], "12")
    episode = await shown().arun_episode(engine, {"prompt": "21="})
    assert episode.sequences[0].reward == 1.0
    assert len(engine.inputs) == 1, "it asks once, as its name says"
    assert await shown().arun_episode(engine, {"prompt": "21="}) is None


def test_the_loop_the_loss_and_the_graph_on_the_page_run():
    loop, loss, graph = BLOCKS.findall((DOCS / "rl-training.md").read_text())
    names: dict[str, Any] = {}
    exec(loop + loss + graph, names)
    context = Mock()
    context.rollout.prepare_batch.side_effect = [Mock(), None]
    names["train"](context)
    context.rollout.publish.assert_called_once_with(context.actor)
    context.rollout.commit.assert_called_once()
    ones = np.ones(3)
    given = SimpleNamespace(proximal=-ones, behaviour=-ones, advantages=ones)
    job = load_job(DOCS.parent / "examples" / "own_graph.yaml")
    made = own_graph(names["graph"], job.spec, frozenset())
    assert stand_in(made, graph_of(job.spec), "advantages") == "total_rewards"
    assert list(names["compute_loss"](_Exp.of(given), _Exp.of(SimpleNamespace(logprobs=-ones)))) == [-1.0] * 3


class _Exp(np.ndarray):
    """An array with a tensor's `exp`."""

    @staticmethod
    def of(values: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(**{name: value.view(_Exp) for name, value in vars(values).items()})

    def exp(self) -> _Exp:
        return np.exp(self)


def test_everything_a_recipe_may_define_has_a_row_with_its_arguments():
    page = (DOCS / "workflows.md").read_text()
    parts = {field.name for field in fields(Recipe)} - {"path", "module", "digest", "workflows"}
    assert [part for part in sorted(parts) if not re.search(rf"^\| `{part}\([a-z]", page, re.M)] == []
    assert "classes deriving from `RolloutWorkflow`" in page


def test_every_field_that_a_hook_is_given_is_described():
    pytest.importorskip("torch")
    from areal_trainer.data.batch import AdvantageBatch
    from areal_trainer.objective import LossBatch

    page = (DOCS / "rl-training.md").read_text()
    given = [field.name for owner in (AdvantageBatch, LossBatch) for field in fields(owner)]
    assert [name for name in given if f"`{name}`" not in page] == []


def test_a_reward_is_told_of_a_chat_what_the_model_read(tmp_path):
    assert "for a chat model the row's messages as the chat template writes them" in (DOCS / "reward.md").read_text()
    chat = Tokenizer.from_dir(write_tokenizer(tmp_path, template=TEMPLATE))
    messages = [{"role": "user", "content": "21="}]
    assert prompt_of({"messages": messages}, chat).text == chat.render_chat(messages) != "21="


def test_files_that_a_repository_is_judged_by_are_there_and_requirements_are_mentioned():
    assert all((DOCS.parent / name).stat().st_size for name in FILES)
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = [f"requirements/{path.name}" for path in (DOCS.parent / "requirements").glob("*.txt")]
    assert named
    assert [name for name in named if name not in pages] == []


async def test_the_agent_on_the_page_earns_half_with_its_second_answer(tmp_path, monkeypatch):
    said: list[list[dict[str, Any]]] = []

    async def create(model, messages):
        said.append(list(messages))
        message = SimpleNamespace(content=["21", "12"][len(said) - 1])
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    monkeypatch.setattr("openai.AsyncOpenAI", lambda base_url, api_key: client)
    agent = shown("agents.md", "class SortAgent", tmp_path).SortAgent()
    row = {"prompt": "21=", "answer": "12"}
    assert await agent.run(row, base_url="http://gateway/v1", api_key="k", http_client=None) == 0.5
    assert [len(messages) for messages in said] == [1, 3]


async def test_the_workflow_with_a_session_on_the_page_makes_its_episode(tmp_path):
    async def ask(row, base_url, api_key):
        return row["answer"] if (base_url, api_key) == ("http://gateway/v1", "k") else ""

    module = shown("agents.md", "class Judged", tmp_path)
    module.ask_my_agent = ask
    engine = create_autospec(Engine, instance=True)
    session = engine.session.return_value.__aenter__.return_value = create_autospec(AgentSession, instance=True)
    session.base_url, session.api_key = "http://gateway/v1", "k"
    await module.Judged().arun_episode(engine, {"answer": "12"})
    session.episode.assert_awaited_once_with(reward=1.0)


async def test_the_calls_of_a_box_on_the_page_are_those_that_it_takes():
    (source,) = [text for text in BLOCKS.findall((DOCS / "boxes.md").read_text()) if text.startswith("async with")]
    engine = create_autospec(Engine, instance=True)
    box = engine.box.return_value.__aenter__.return_value = create_autospec(Box, instance=True)
    names: dict[str, Any] = {}
    exec("async def use(engine, source):\n" + indent(source, "    ") + "    return data\n", names)
    assert await names["use"](engine, b"print(1)") is box.read.return_value
    assert (box.bash.await_count, box.python.await_count, box.write.await_count) == (2, 2, 1)


def test_the_hooks_on_the_page_are_taken_and_name_their_figures(tmp_path):
    torch = pytest.importorskip("torch")
    module = shown("figures.md", "def compute_advantages", tmp_path)
    batch = SimpleNamespace(rewards=np.array([0.0, 1.0]), behaviour=torch.tensor([-1.0, -2.0]), figures={})
    assert list(module.compute_advantages(batch)) == [-0.5, 0.5]
    outputs = SimpleNamespace(logprobs=torch.tensor([-1.5, -2.5]), loss=torch.tensor([0.1, 0.2]))
    assert module.compute_loss(batch, outputs) is outputs.loss
    assert {name: float(value) for name, value in batch.figures.items()} == {"best": 1.0, "gap": 0.5}


def shown(page: str, begins: str, folder: Path) -> ModuleType:
    """The recipe of a page's block, which holds a line that begins so."""
    (source,) = [text for text in BLOCKS.findall((DOCS / page).read_text()) if f"\n{begins}" in f"\n{text}"]
    (folder / "recipe.py").write_text(source)
    return load_recipe(folder / "recipe.py").module
