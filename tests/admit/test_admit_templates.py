"""A chat template that can't do what the job's episodes need is found before a run, in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.admit.facts import judged, read
from areal.admit.sources import sources_of
from areal.spec import Severity
from areal.spec.load import load_job
from support.chat_tokenizer import CHATML, UNCLOSED, control_strings, write_chat_tokenizer
from support.family_templates import FAMILIES
from support.tiny_job import make_tiny_job

AGENT = ["rollout.workflow=agent", "rollout.agent.run=Mine", "rollout.chatTemplate=true"]
TURNS = ["rollout.workflow=multi-turn", "rollout.chatTemplate=true"]


def said(folder: Path, template: str, *overrides: str) -> list[tuple[Severity, str, str]]:
    """What check says of the template of a job."""
    file = make_tiny_job(folder)
    config = json.loads((folder / "model" / "config.json").read_text())
    control = tuple({*control_strings(template), "<|im_end|>"})
    write_chat_tokenizer(folder / "tokenizer", template, control)
    made = json.loads((folder / "tokenizer" / "config.json").read_text())  # vocabulary and end
    (folder / "model" / "config.json").write_text(json.dumps({**config, **made}))
    job = load_job(file, [f"model.tokenizer={folder / 'tokenizer'}", *overrides])
    sources = sources_of(job, folder)
    findings = judged(job, read(job, sources, here=False), folder)
    return [(one.severity, one.field, one.message) for one in findings if "template" in one.message]


@pytest.mark.parametrize("overrides", [TURNS, AGENT])
def test_a_template_that_cannot_be_continued_is_refused(tmp_path: Path, overrides: list[str]) -> None:
    (found,) = said(tmp_path, UNCLOSED, *overrides)
    assert found[0] is Severity.ERROR
    assert "can't be continued behind an answer: an answer isn't closed by a token that ends it" in found[2]


def test_single_turns_need_no_bridge(tmp_path: Path) -> None:
    assert said(tmp_path, UNCLOSED) == []


def test_an_agent_is_told_that_its_model_cannot_call_tools(tmp_path: Path) -> None:
    (found,) = said(tmp_path, CHATML, *AGENT)
    assert found[:2] == (Severity.WARNING, "spec.rollout.agent")
    assert "requests with tools will be refused" in found[2]
    assert said(tmp_path / "other", FAMILIES["QWEN_CODER"], *AGENT) == []


def test_arguments_that_no_template_reads_are_refused(tmp_path: Path) -> None:
    (found,) = said(tmp_path, CHATML, 'model.chatTemplateKwargs={"enable_thinking": false}')
    assert found[0] is Severity.ERROR
    assert "reads no enable_thinking" in found[2]
