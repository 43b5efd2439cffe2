"""What each family of models can do, tried on a tiny one: a cell a family and column.

A program: `python -m support.family_cells HOME FAMILY…` prints a JSON line a family, `… --table` the whole table as
`areal check` and docs/models.md have it. A cell is `yes`, or `refused: why` with the product's own words; what is wrong
without being refused is `WRONG: …`. Each is tried in a fork of its own.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import transformers.models.qwen3.modeling_qwen3
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.module_model import ModuleModel
from areal.engine.weights import read_tensors
from areal.spec.model_families import COMPARED, EXPERTS, HYBRIDS, VISION
from areal.values.policy import PolicyId
from areal.weights.adapter import AdapterConfig
from areal.weights.manifest import Canary
from areal.weights.publish import open_staging, publish, seal_delta
from areal.weights.shards import write_delta
from areal.weights.stage import StagingArea
from areal.weights.verify import open_version
from areal_trainer.checkpoint.checkpointer import Checkpointer
from areal_trainer.checkpoint.saving import RunPosition
from areal_trainer.data.micro_batches import rank_micro_batches
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.model import empty_model
from areal_trainer.publish.exporter import side_files, sources
from areal_trainer.trainings.kinds import Learner
from support.forked_ranks import ended, forked, joined, words
from support.tiny_families import MORE, SIZES
from support.tiny_vision import vision_model
from support.trainer_parts import VOCABULARY, batch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

CLOSE = 1e-4  # log-probabilities, and relative gradient norms, in float32
ADAM = AdamWOptions(epsilon=1e-4)
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def made(path: Path, family: str) -> Path:
    """A tiny model with weights large enough that a mistake shows."""
    if family in VISION:
        vision_model(path, family, scale=2)
        return path
    torch.manual_seed(4)
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **MORE.get(family, {})}))
    with torch.no_grad():
        for tensor in lm.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.1 if tensor.abs().max() == 0 else tensor * 2)
    lm.save_pretrained(path)
    return path


def trained(engine: PolicyEngine, steps: range) -> list[float]:
    """Loss and gradient norm of each step, and log-probabilities afterwards."""
    learner = Learner(engine, lambda micro: engine.forward(micro)[0], 24, 16)
    told: list[float] = []
    for step in steps:
        tokens = batch(3, 4, seed=step, shared=True)
        weights = np.where(tokens.trainable(), np.random.default_rng(step).normal(0, 0.02, tokens.tokens), 0.0)
        update = learner.update(tokens, weights, 1e-3)
        told += [update.loss, update.grad_norm]
    return told + learner.outputs(batch(3, 4, seed=9, shared=True))[:40].tolist()


def alone(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    """What every mesh and mode has to compute, too."""
    return trained(PolicyEngine(path, ModelOptions(optimizer=ADAM), ranks), range(2))


def recompute(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    return trained(PolicyEngine(path, ModelOptions(optimizer=ADAM, recompute="full"), ranks), range(2))


def selective(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    return trained(PolicyEngine(path, ModelOptions(optimizer=ADAM, recompute="selective"), ranks), range(2))


def resume(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    first = PolicyEngine(path, ModelOptions(optimizer=ADAM), ranks)
    begun = trained(first, range(1))[:2]
    checkpointer = Checkpointer(home / "checkpoints", 9, first)
    checkpointer.save(RunPosition(1, 1), lambda: None).wait()
    checkpointer.close()
    second = PolicyEngine(path, ModelOptions(optimizer=ADAM), ranks)
    again = Checkpointer(home / "checkpoints", 9, second)
    found = again.newest([])
    assert found is not None
    again.load(found)
    again.close()
    return begun + trained(second, range(1, 2))


def delta(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    """A version of changes, staged, has every byte of the whole one, and an engine loads it."""
    engine, canary = (
        PolicyEngine(path, ModelOptions(optimizer=ADAM), ranks),
        Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=0.02),
    )
    files = side_files(path, path)
    before = {name: tensor.clone() for name, tensor in engine.export()}
    full = publish(home / "weights", PolicyId(0, 1), sources(iter(before.items())), canary, files)
    trained(engine, range(1))
    policy = PolicyId(1, 1)
    staging = open_staging(home / "weights", policy)
    base = {name: tensor.numpy() for name, tensor in before.items()}
    part = write_delta(staging, 0, base, sources(engine.export()))
    changed = seal_delta(
        home / "weights", staging, policy, [part], open_version(full.path, full.manifest_digest), canary, files
    )
    area = StagingArea(home / "stage")
    staged = area.prepare(changed.path, changed.manifest_digest)
    found = read_tensors(staged.path)
    assert all(torch.equal(found[name], tensor) for name, tensor in engine.export())
    served(staged.path).build(staged.path, found)
    return []


def served(path: Path) -> DecoderModel | ModuleModel:
    config = ModelConfig.from_dir(path)
    return (
        DecoderModel(config, torch.float32, config.context)
        if config.module is None
        else ModuleModel(config, path, torch.float32)
    )


def embedded(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    """The engine's log-probabilities of a sequence, and its checksums, are the trainer's."""
    engine = PolicyEngine(path, ModelOptions(), ranks)
    tokens = batch(2, 1, seed=3)
    chosen, wanted = np.arange(tokens.sequences), tokens.trainable()
    micros = rank_micro_batches(
        tokens, chosen, wanted, rank=0, world_size=1, micro_batch_tokens=64, pack_length=64
    )  # fmt: skip
    ours = engine.logprobs(micros, tokens.tokens)
    model = served(path)
    weights = model.build(path, read_tensors(path))
    for start, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
        ids = torch.from_numpy(tokens.token_ids[start:end])
        hidden = model.prefill(weights, None, ids[None, :-1], None, hidden=True)
        theirs = model.logits(weights, hidden[0]).log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        apart = (theirs - ours[start + 1 : end])[torch.from_numpy(wanted[start + 1 : end])].abs().max()
        assert float(apart) <= CLOSE, f"engine and trainer are {float(apart):.2g} apart"
    return []


def lora(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    """Adapters on the linear layers that the field's default names, as far as there are some that aren't experts':
    each is trained."""
    layers = empty_model(path).lm.named_modules()
    named = {name.rpartition(".")[2] for name, layer in layers if isinstance(layer, nn.Linear)}
    named -= {name.split(".")[-2] for name in read_tensors(path) if ".experts." in name}
    config = AdapterConfig(4, 8.0, tuple(name for name in ALL_LINEAR if name in named))
    engine = PolicyEngine(path, ModelOptions(optimizer=ADAM, adapter=config), ranks)
    trained(engine, range(2))
    assert engine.trained()
    assert all(parameter.to_local().abs().max() > 0 for parameter in engine.trained().values())
    return []


def mesh(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    return trained(PolicyEngine(path, ModelOptions(optimizer=ADAM), ranks), range(2))


def segments(home: Path, path: Path, ranks: RankGroup) -> list[float]:
    return trained(PolicyEngine(path, ModelOptions(optimizer=ADAM, attention="varlen"), ranks), range(2))


COLUMNS: dict[str, tuple[Callable[[Path, Path, RankGroup], list[float]], dict[str, int]]] = {
    "alone": (alone, {}),
    "resume": (resume, {}),
    "delta": (delta, {}),
    "engine = trainer": (embedded, {}),
    "segments": (segments, {}),
    "recompute: full": (recompute, {}),
    "recompute: selective": (selective, {}),
    "LoRA": (lora, {}),
    "data ranks": (mesh, {"world": 2}),
    "tensor ranks": (mesh, {"world": 2, "tensor": 2}),
    "context ranks": (mesh, {"world": 2, "context": 2}),
}


def rank_made(_: int, path: Path, family: str) -> None:
    made(path, family)  # in a fork, too: a process that has computed has threads, and can't be forked


def rank_main(rank: int, home: Path, path: Path, column: str) -> None:
    function, sizes = COLUMNS[column]
    sizes = dict(sizes)
    ranks = joined(rank, home / "store", sizes.pop("world", 1), **sizes)
    told = function(home, path, ranks)
    (home / f"{rank}.json").write_text(json.dumps(told))
    ranks.close()


def cell(home: Path, path: Path, column: str, expected: list[float]) -> tuple[str, list[float]]:
    """What became of a column, and the numbers that were computed."""
    home.mkdir(parents=True)
    world = COLUMNS[column][1].get("world", 1)
    codes = ended([forked(rank_main, rank, home / "error", home, path, column) for rank in range(world)])
    if set(codes) == {75}:
        return f"refused: {min(words(home / 'error', world).values())}", []
    if any(codes):
        return f"WRONG: ended with {codes}", []
    told = json.loads((home / "0.json").read_text())
    apart = max((abs(a - b) / max(1.0, abs(b)) for a, b in zip(told, expected, strict=False)), default=0.0)
    return ("yes" if apart <= CLOSE else f"WRONG: {apart:.2g} from one rank alone"), told


def measured(home: Path, family: str) -> dict[str, str]:
    """All cells of a family."""
    path, found, expected = home / "start", dict[str, str](), list[float]()
    home.mkdir()
    assert ended([forked(rank_made, 0, home / "error", path, family)]) == [0]
    for column in COLUMNS:
        place = home / column.replace(" ", "-").replace(":", "")
        found[column], told = cell(place, path, column, expected)
        expected = expected or told
        found[column] = found[column].replace(f"{path}: ", "")
    return found


def main() -> None:
    torch.set_num_threads(1)
    assert SIZES["vocab_size"] == VOCABULARY
    if sys.argv[1:] == ["--table"]:
        with TemporaryDirectory() as place:
            families = sorted((*COMPARED, *EXPERTS, *HYBRIDS, *VISION))
            table = {family: measured(Path(place) / family, family) for family in families}
        print("{\n" + ",\n".join(f"{json.dumps(family)}: {json.dumps(row)}" for family, row in table.items()) + "\n}")
        return
    home = Path(sys.argv[1])
    for family in sys.argv[2:]:
        print(json.dumps({"family": family, "cells": measured(home / family, family)}), flush=True)


if __name__ == "__main__":
    main()
