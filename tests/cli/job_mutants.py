"""Wrong jobs by the hundred: examples and the tests' job files, each with one thing changed by a seeded generator.

A mutant may still be a good job: what is asked of it is that `check` and `run` say the same.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from support.tiny_job import make_tiny_job, write_job

ROOT = Path(__file__).resolve().parents[2]
BASES = sorted([*(ROOT / "examples").glob("*.yaml"), *(ROOT / "tests/spec/corpus/accepted").glob("*.yaml")])
SPOILT: list[Any] = ["many", -1, 0, 10**12, None, [], {}, 1.5, True, "", "gone/away", "data/trian.parquet", "1e-3"]
FOREIGN: dict[str, Any] = {
    "lr": 1e-5, "epochs": 2, "csv": "rows.csv", "parquet": "rows.parquet", "num_generations": 8, "gpus": 8,
    "max_steps": 10, "temperature": 0.7, "verifier": "exact", "workflow": "rlvr", "path": "gone", "type": "sglang",
}  # fmt: skip
REWARDS = (
    "raise RuntimeError('no')", "return None", "return '1.0'", "return float('nan')", "return float(int(completions))",
    "return float(row['solution'])", "return completions[0] == answer", "return {'correct': None}", "return {}",
    "return {'correct': 1.0}", "return 1", "return True", "return float('inf')", "return [1.0]", "import nowhere",
    "raise SystemExit(3)", "return 1.0 / len(completions)", "return float(answer.index(completions))", "pass",
    "return complex(1)",
)  # fmt: skip
SIGNATURES = (
    "def reward(completions, **kwargs):",  # TRL's
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None):",  # verl's
    "def reward(prompt, completions, prompt_ids, completion_ids, answer):",
    "async def reward(prompt, completions, prompt_ids, completion_ids, **row):",
    "def reward(prompt, completions, prompt_ids, completion_ids, *, solution, **row):",
)
Paths = Iterator[tuple[dict[str, Any], str]]


def spoil(folder: Path, seed: int) -> str:
    """Write mutant `seed` as `job.yaml` with its files below `folder`, which is also made; what was done."""
    draw = random.Random(seed)
    folder.mkdir()
    make_tiny_job(folder)
    if seed % 5 == 4:
        return _files(folder, draw)
    path = draw.choice(BASES)
    job = yaml.safe_load(path.read_text())
    _here(job, folder)
    places = list(_places(job["spec"]))
    block, name = draw.choice(places)
    kind = draw.choice(("drop", "typo", "spoil", "spoil", "scale", "foreign"))
    old = block[name]
    if kind == "drop":
        del block[name]
    elif kind == "typo":
        block[name[:-1] or "x"] = block.pop(name)
    elif kind == "scale" and isinstance(old, int | float) and not isinstance(old, bool):
        block[name] = old * draw.choice((-1, 0, 1000, 0.5))
    elif kind == "foreign":
        name = draw.choice(list(FOREIGN))
        block[name] = FOREIGN[name]
    else:
        block[name] = draw.choice(SPOILT)
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    return f"{path.stem}: {kind} {name}: {old!r:.40} -> {block.get(name)!r:.40}"


def _places(block: dict[str, Any]) -> Paths:
    for name, value in block.items():
        yield block, name
        if isinstance(value, dict):
            yield from _places(value)


def _here(job: dict[str, Any], folder: Path) -> None:
    """Give a job the model and rows of the folder, so that more than its paths is looked at."""
    spec = job["spec"]
    spec.pop("runtimeRef", None)
    spec["model"] = {"path": "model"}
    spec["dataset"] = {name: {"jsonl": "train.jsonl"} for name in spec["dataset"] if name in ("train", "evaluation")}
    file = (spec.get("recipe") or {}).get("file", "")
    if file and (ROOT / file).exists():
        spec["recipe"]["file"] = str(ROOT / file)
    config = json.loads((folder / "model/config.json").read_text()) | {"max_position_embeddings": 4096}
    (folder / "model/config.json").write_text(json.dumps(config))


def _files(folder: Path, draw: random.Random) -> str:
    """Damage a file that the job names."""
    damages: tuple[Callable[[Path, random.Random], str], ...] = (_reward, _reward, _signature, _row, _row, _model)
    return draw.choice(damages)(folder, draw)


def _reward(folder: Path, draw: random.Random) -> str:
    body = draw.choice(REWARDS)
    head = "def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):\n    "
    (folder / "recipe.py").write_text(head + body + "\n")
    return f"reward: {body}"


def _signature(folder: Path, draw: random.Random) -> str:
    head = draw.choice(SIGNATURES)
    (folder / "recipe.py").write_text(f"{head}\n    return 1.0\n")
    return head


def _row(folder: Path, draw: random.Random) -> str:
    write_job(folder, reward={"verifier": "exact"}, recipe=None)
    file = folder / draw.choice(("train.jsonl", "heldout.jsonl"))
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    data[place : place + draw.randrange(1, 4)] = draw.choice((b"", b"\xff", b"{", b'"', b"\n", b"null"))
    file.write_bytes(data)
    return f"{file.name}: byte {place}"


def _model(folder: Path, draw: random.Random) -> str:
    write_job(folder, reward={"verifier": "exact"}, recipe=None)
    config = json.loads((folder / "model/config.json").read_text())
    name = draw.choice(sorted(config))
    config[name] = draw.choice(SPOILT)
    (folder / "model/config.json").write_text(json.dumps(config))
    if draw.random() < 0.2:
        os.truncate(folder / "model" / draw.choice(("tokenizer.json", "model.safetensors")), draw.randrange(100))
    return f"model: {name}: {config[name]!r}"
