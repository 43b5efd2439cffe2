"""Broken jobs, models and datasets: each refused by `areal check` and by `areal run`, for the same reason.

`BROKEN`: name → what is done to a folder with a good job, and a word of the refusal.
"""

# ruff: noqa: E501 (a case a line)
from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areal.spec.supervised import Training
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


def pipe(name: str, **changes: Any) -> Spoil:
    """A named pipe where a file should be: whoever opens it waits for a writer."""

    def spoil(folder: Path) -> None:
        write_job(folder, **{**EXACT, **changes})
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


def recipe(code: str, **changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        write_job(folder, **changes)
        (folder / "recipe.py").write_text(code)

    return spoil


def agent(code: str, **block: Any) -> Spoil:
    rollout = {"workflow": "agent", "maxSampleTokens": 16, "sampling": {"maxNewTokens": 4}, "agent": block or None}
    return recipe(code, rollout={name: value for name, value in rollout.items() if value is not None})


def supervised(training: Training, data: bytes, of: dict[str, Any] | None = None, /, **changes: Any) -> Spoil:
    """A job that learns from fixed rows. `of` are fields of its training, `changes` other blocks."""
    block = {"name": training, "batchSize": 4, "epochs": 1, "maxTokens": 16}
    none = {"rollout": None, "algorithm": None, "recipe": None}

    def spoil(folder: Path) -> None:
        write_job(
            folder, **{**none, "training": {**block, **(of or {})}, "optimizer": {"learningRate": 1e-3}, **changes}
        )
        for split in ("train", "heldout"):
            (folder / f"{split}.jsonl").write_bytes(data)

    return spoil


def instead_of_rows(make: Callable[[Path], object]) -> Spoil:
    """Something else where the rows should be."""

    def spoil(folder: Path) -> None:
        write_job(folder, **EXACT)
        (folder / "train.jsonl").unlink()
        make(folder / "train.jsonl")

    return spoil


def gym(**fields: Any) -> Spoil:
    return job(dataset={"train": {"reasoningGym": {"size": 8, **fields}}})


REWARD = "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"
SOLVE = "async def solve(row, *, base_url, api_key, **extra):\n    return 1.0\n"
PPO = {"name": "PPO", "groupSize": 1, "batchSize": 4, "maxSteps": 3}
PAIR = b'{"prompt": "1=", "chosen": "1", "rejected": "2"}\n'
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
    "a pipe": (pipe("job.yaml"), "no regular file"),
    "an octal number": (text("maxSteps: 3", "maxSteps: 0003"), "leading zeros"),
    "a quoted number": (text("maxSteps: 3", 'maxSteps: "3"'), "without quotes"),
    "yes for a name": (text("name: tiny", "name: yes"), "put it in quotes"),
    "minutes for a number": (text("maxSteps: 3", "maxSteps: 1:40"), "whole number"),
    "a field twice": (text("maxSteps: 3", "maxSteps: 3\n    maxSteps: 4"), "written twice"),
    "an unknown field": (text("maxSteps", "maxStep"), "did you mean maxSteps"),
    "a field that is missing": (text("    batchSize: 4\n", ""), "missing"),
    "a name with capitals": (text("name: tiny", "name: Tiny"), "name of pods"),
    # rules
    "no algorithm": (job(algorithm=None), "neither is given"),
    "an algorithm beside its training": (supervised("SFT", GOOD_ROW * 8, algorithm={"name": "GRPO", "batchSize": 4, "maxSteps": 3}), "both are given"),
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
    "a model that is a file": (job(model={"path": "train.jsonl"}), "no Hugging Face model"),
    "no config.json": (model_file("config.json", None), "config.json"),
    "an empty config.json": (model_file("config.json", b""), "config.json"),
    "a config.json that is a list": (model_file("config.json", b"[]"), "config.json"),
    "a config.json of many brackets": (model_file("config.json", b"[" * 100_000), "config.json"),
    "an attention that nobody computes": (config(architectures=["BloomForCausalLM"], model_type="bloom"), "bloom"),
    "no causal model": (config(architectures=["Qwen3ForSequenceClassification"]), "Qwen3ForSequenceClassification"),
    "no sizes": (config(num_hidden_layers=None), "num_hidden_layers"),
    "a size in words": (config(hidden_size="large"), "large"),
    "soft-capped logits": (config(final_logit_softcapping=30.0), "final_logit_softcapping"),
    "an activation that the engine lacks": (config(hidden_act="gelu"), "gelu"),
    "a pipe for config.json": (pipe("model/config.json"), "no regular file"),
    "a pipe for weights": (pipe("model/model.safetensors"), "no regular file"),
    "a pipe for a tokenizer": (pipe("model/tokenizer.json"), "no regular file"),
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
    "a directory for rows": (instead_of_rows(Path.mkdir), "train.jsonl is no file"),
    "a pipe for rows": (instead_of_rows(os.mkfifo), "train.jsonl is no file"),
    "rows whose disk fails": (instead_of_rows(lambda path: path.symlink_to("/proc/self/mem")), "cannot read the dataset file"),
    "rows that are compressed": (rows(gzip.compress(GOOD_ROW * 9)), "jsonl:1"),
    "rows between carriage returns": (rows(GOOD_ROW.replace(b"\n", b"\r") * 3), "jsonl:1"),
    "NUL in a row": (line(6, b'{"prompt": "1\0=", "answer": "1"}'), "jsonl:6"),
    "a number beyond all": (line(8, b'{"prompt": "1=", "answer": "1", "weight": 1e999}'), "jsonl:8"),
    # agents
    "no agent": (agent(SOLVE), "no rollout.agent.run"),
    "an agent's program that isn't there": (agent(SOLVE, command=["./agent", "-v"]), "no program './agent'"),
    "another agent": (agent(SOLVE, run="solved"), "no agent 'solved'; it has solve"),
    "an agent that is not async": (agent(SOLVE.removeprefix("async "), run="solve"), "no agent 'solve'"),
    "an agent that takes nothing": (agent("async def solve():\n    return 1.0\n", run="solve"), "no agent 'solve'"),
    "an agent without a recipe": (job(reward=None, rollout={"workflow": "agent", "agent": {"run": "solve"}, "maxSampleTokens": 16, "sampling": {"maxNewTokens": 4}}), "no recipe"),
    # trainings from fixed rows
    "a row without its answer": (supervised("SFT", b'{"prompt": "1=", "answer": "1"}\n{"prompt": "1="}\n'), "jsonl:2: a row has neither"),
    "a chat that ends with a question": (supervised("SFT", b'{"messages": [{"role": "user", "content": "1="}]}\n'), "jsonl:1: a row has neither"),
    "a chat without a template": (supervised("SFT", b'{"messages": [{"role": "user", "content": "1="}, {"role": "assistant", "content": "1"}]}\n'), "no chat template"),
    "a pair without its other side": (supervised("DPO", PAIR * 3 + b'{"prompt": "1=", "chosen": "1"}\n'), 'jsonl:4: .*rejected'),
    "a pair without its margin": (supervised("RewardModel", PAIR * 3, {"marginField": "strength"}), "jsonl:1: a row's column 'strength' is no finite"),
    "a reward model that is none": (job(**{**EXACT, "reward": {"verifier": "model", "model": {"path": "model"}}}), "no sequence-classification model"),
    "a teacher that isn't there": (supervised("Distillation", GOOD_ROW * 8, {"teacher": {"path": "gone"}}), "'gone' is not there"),
    "a teacher that reads too little": (supervised("Distillation", GOOD_ROW * 8, {"maxTokens": 5000, "teacher": {"path": "model"}}, trainer={"microBatchTokens": 5000}), "and maxTokens is 5000"),
    "a field of the other training": (supervised("SFT", PAIR, {"beta": 0.1}), "beta: unknown field"),
    "rollouts of fixed rows": (supervised("SFT", GOOD_ROW * 8, rollout={"maxSampleTokens": 16}), "rollout says something"),
    # critics and caches
    "a critic that learns alone to the end": (job(algorithm={**PPO, "critic": {"warmupSteps": 3}}), "learns alone for 3 steps"),
    "a critic of another model": (job(algorithm={**PPO, "critic": {"path": "model"}}), "unknown field"),
    "a cache of a kilobyte": (job(generation={"engine": {"cacheMemory": "1Ki"}}), "at least"),
    "a cache beyond the machine": (job(generation={"engine": {"cacheMemory": "900Ti"}}), "may take 900 TiB"),
    "a cache of another engine": (job(generation={"engine": {"type": "sglang", "cacheMemory": "1Gi"}}), "unknown field"),
    # the recipe
    "a pipe for a recipe": (pipe("recipe.py", recipe={"file": "recipe.py"}, reward=None), "no regular file"),
    "a recipe that raises": (recipe("raise RuntimeError('not today')\n"), "recipe.py:1: RuntimeError: not today"),
    "a recipe that interrupts": (recipe("raise KeyboardInterrupt\n"), "ends the process"),
    "NUL in a recipe": (recipe("x = 1\0\n"), "null bytes"),
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
