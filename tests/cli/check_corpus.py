"""Broken jobs, models and datasets: each refused by `areal check` and by `areal run`, for the same reason.

`BROKEN`: name → what is done to a folder with a good job, and a word of the refusal.
"""

# ruff: noqa: E501 (a case a line)
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.tiny_job import write_job

Spoil = Callable[[Path], object]
EXACT: dict[str, Any] = {"reward": {"verifier": "exact"}, "recipe": None}
GOOD_ROW = b'{"prompt": "1=", "answer": "1"}\n'


def job(**changes: Any) -> Spoil:
    return lambda folder: write_job(folder, **{**EXACT, **changes})


def text(old: str, new: str) -> Spoil:
    """The job file with other text."""

    def spoil(folder: Path) -> None:
        path = write_job(folder, **EXACT)
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return spoil


def rows(data: bytes, *, split: str = "train") -> Spoil:
    def spoil(folder: Path) -> None:
        write_job(folder, **EXACT)
        (folder / f"{split}.jsonl").write_bytes(data)

    return spoil


def line(number: int, data: bytes) -> Spoil:
    """Good rows, one of which is another."""
    return rows(GOOD_ROW * (number - 1) + data + b"\n" + GOOD_ROW * 3)


def config(**changes: Any) -> Spoil:
    """Another config.json; None removes a field."""

    def spoil(folder: Path) -> None:
        write_job(folder, **EXACT)
        path = folder / "model" / "config.json"
        made = {k: v for k, v in {**json.loads(path.read_text()), **changes}.items() if v is not None}
        path.write_text(json.dumps(made))

    return spoil


def model_file(name: str, data: bytes | None) -> Spoil:
    def spoil(folder: Path) -> None:
        write_job(folder, **EXACT)
        path = folder / "model" / name
        path.unlink() if data is None else path.write_bytes(data)

    return spoil


def recipe(code: str, **changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        write_job(folder, **changes)
        (folder / "recipe.py").write_text(code)

    return spoil


def gym(**fields: Any) -> Spoil:
    return job(dataset={"train": {"reasoningGym": {"size": 8, **fields}}})


REWARD = "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"
TENSOR = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'

BROKEN: dict[str, tuple[Spoil, str]] = {
    # the file itself
    "an empty file": (lambda folder: (folder / "job.yaml").write_text(""), "is empty"),
    "no mapping": (lambda folder: (folder / "job.yaml").write_text("- a\n"), "holds no mapping"),
    "two documents": (lambda folder: (folder / "job.yaml").write_text("a: 1\n---\nb: 1\n"), "second YAML document"),
    "NUL": (text("name: tiny", "name: ti\0ny"), "U\\+0000"),
    "an escape sequence": (text("name: tiny", "name: ti\x1bny"), "U\\+001B"),
    "a tab": (text("  name: tiny", "\tname: tiny"), "no valid YAML"),
    "3,000 brackets": (text("name: tiny", "name: " + "[" * 3000), "nested more than"),
    "an octal number": (text("maxSteps: 3", "maxSteps: 0003"), "leading zeros"),
    "a quoted number": (text("maxSteps: 3", 'maxSteps: "3"'), "without quotes"),
    "yes for a name": (text("name: tiny", "name: yes"), "put it in quotes"),
    "minutes for a number": (text("maxSteps: 3", "maxSteps: 1:40"), "whole number"),
    "a field twice": (text("maxSteps: 3", "maxSteps: 3\n    maxSteps: 4"), "written twice"),
    "an unknown field": (text("maxSteps", "maxStep"), "did you mean maxSteps"),
    "a field that is missing": (text("    batchSize: 4\n", ""), "missing"),
    "a name with capitals": (text("name: tiny", "name: Tiny"), "name of pods"),
    # rules
    "a group of one": (text("groupSize: 2", "groupSize: 1"), "groupSize"),
    "no temperature": (job(rollout={"maxSampleTokens": 16, "sampling": {"maxNewTokens": 4, "temperature": 0}}), "temperature"),
    "an answer longer than its sample": (job(rollout={"maxSampleTokens": 16, "sampling": {"maxNewTokens": 16}}), "answer"),
    "a sample longer than the context": (job(rollout={"maxSampleTokens": 65, "sampling": {"maxNewTokens": 4}}), "context is 64"),
    "nobody scores": (job(reward=None), "neither a reward.verifier nor a recipe"),
    "an unknown workflow": (job(rollout={"workflow": "rlvrr", "maxSampleTokens": 16, "sampling": {"maxNewTokens": 4}}), "no workflow"),
    "two datasets": (job(dataset={"train": {"jsonl": "train.jsonl", "reasoningGym": {"task": "chain_sum", "size": 3}}}), "are given"),
    "no dataset": (job(dataset={"train": {}}), "no source"),
    # the model
    "no model": (job(model={"path": "gone"}), "init-model"),
    "a model of the hub": (job(model={"path": "Qwen/Qwen3-0.6B"}), "hf download Qwen/Qwen3-0.6B"),
    "an address of the hub": (job(model={"uri": "hf://Qwen/Qwen3-0.6B"}), "Download"),
    "a model that is a file": (job(model={"path": "train.jsonl"}), "no Hugging Face model"),
    "no config.json": (model_file("config.json", None), "config.json"),
    "an empty config.json": (model_file("config.json", b""), "config.json"),
    "a config.json that is a list": (model_file("config.json", b"[]"), "config.json"),
    "a config.json of many brackets": (model_file("config.json", b"[" * 100_000), "config.json"),
    "an unknown architecture": (config(architectures=["MambaForCausalLM"]), "MambaForCausalLM"),
    "no causal model": (config(architectures=["Qwen3ForSequenceClassification"]), "Qwen3ForSequenceClassification"),
    "no sizes": (config(num_hidden_layers=None), "num_hidden_layers"),
    "a size in words": (config(hidden_size="large"), "large"),
    "soft-capped logits": (config(final_logit_softcapping=30.0), "final_logit_softcapping"),
    "an activation that the engine lacks": (config(hidden_act="gelu"), "gelu"),
    "no weights": (model_file("model.safetensors", None), "safetensors"),
    "weights that are cut off": (model_file("model.safetensors", len(TENSOR).to_bytes(8, "little") + TENSOR + b"1234"), "cut off"),
    "weights that are none": (model_file("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "no safetensors file"),
    "no tokenizer": (model_file("tokenizer.json", None), "tokenizer.json"),
    "a tokenizer that is none": (model_file("tokenizer.json", b"{}"), "no tokenizer"),
    "a vocabulary beyond the model's": (config(vocab_size=4), "tokenizer|embedding"),
    # rows
    "no rows file": (job(dataset={"train": {"jsonl": "gone.jsonl"}}), "gone.jsonl"),
    "no rows": (rows(b""), "no rows"),
    "blank lines only": (rows(b"\n\n\n"), "no rows"),
    "a JSON array": (rows(b'[{"prompt": "1="}]\n'), "one JSON array"),
    "UTF-16": (rows('{"prompt": "1=", "answer": "1"}\n'.encode("utf-16")), "UTF-16"),
    "Latin-1": (line(3, '{"prompt": "é", "answer": "1"}'.encode("latin-1")), "jsonl:3"),
    "a number for a row": (line(51, b"42"), "jsonl:51"),
    "a broken line": (line(51, b'{"prompt": "1=", '), "jsonl:51"),
    "NaN": (line(7, b'{"prompt": "1=", "answer": NaN}'), "jsonl:7"),
    "half a character": (line(9, b'{"prompt": "\\ud800", "answer": "1"}'), "jsonl:9"),
    "100,000 brackets": (line(2, b'{"prompt": ' + b"[" * 100_000 + b"}"), "jsonl:2"),
    "a row without a prompt": (line(60, b'{"answer": "1"}'), 'jsonl:60: column "messages" or "prompt"'),
    "a row without an answer": (line(60, b'{"prompt": "1="}'), 'jsonl:60: column "answer"'),
    "a null for an answer": (line(5, b'{"prompt": "1=", "answer": null}'), 'jsonl:5: column "answer"'),
    "another name for the answer": (job(reward={"verifier": "exact", "answerField": "solution"}), '"solution"'),
    "a prompt that is a number": (line(4, b'{"prompt": 12, "answer": "1"}'), "jsonl:4"),
    "a prompt too long at line 300": (line(300, b'{"prompt": "' + b"1" * 5000 + b'=", "answer": "1"}'), "jsonl:300"),
    "a held-out row that is broken": (rows(b"{}\n" * 3, split="heldout"), "heldout.jsonl:1"),
    "no held-out rows": (rows(b"", split="heldout"), "heldout.jsonl has no rows"),
    "an unknown task": (gym(task="chain_summ"), "did you mean chain_sum"),
    "an unknown argument of a task": (gym(task="chain_sum", config={"nothing_like_this": 1}), "nothing_like_this"),
    "an unknown kind of data file": (job(dataset={"train": {"huggingFace": {"path": "job.yaml"}}}), "kind of data file"),
    "a column that isn't there": (
        job(dataset={"train": {"huggingFace": {"path": "train.jsonl", "columns": {"prompt": "quest"}}}}),
        'no column "quest"',
    ),
    # the recipe
    "no recipe": (job(recipe={"file": "gone.py"}), "gone.py"),
    "a recipe that imports what isn't there": (recipe("import nothing_of_that_name\n"), "nothing_of_that_name"),
    "a recipe with an error": (recipe("def reward(:\n"), "recipe.py:1"),
    "a recipe that exits": (recipe("import os\nos._exit(3)\n"), "ends the process"),
    "a reward of another shape": (recipe("def reward(x):\n    return 1\n"), "wrong arguments"),
    "a reward with a column that rows lack": (recipe(REWARD.replace("**row", "*, solution, **row")), 'needs the column "solution"'),
    "a recipe without a reward": (recipe("x = 1\n"), "defines no `reward`"),
    "two who score": (recipe(REWARD, reward={"verifier": "exact"}), "which one scores"),
    "a workflow of the recipe that isn't there": (
        recipe(REWARD, rollout={"workflow": "Mine", "maxSampleTokens": 16, "sampling": {"maxNewTokens": 4}}),
        "no workflow 'Mine'",
    ),
}  # fmt: skip
