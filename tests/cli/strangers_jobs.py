"""Jobs of strangers, each with one thing wrong in a file of its own, and good jobs drawn from what people bring."""

# ruff: noqa: E501 (a case a line)
from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.tiny_job import make_model, shapes_of, write_job, write_weights

Spoil = Callable[[Path], object]
EXACT: dict[str, Any] = {"reward": {"verifier": "exact"}, "recipe": None}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_SYSTEM = TEMPLATE.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'system' %}")
REFUSING = "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}{{ m['content'] }}{% endfor %}"
SYSTEM_ROWS = [
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{n}="}], "answer": str(n)}
    for n in range(9)
]
LONG = {"rollout": {"maxSampleTokens": 60, "sampling": {"maxNewTokens": 4}}}
REWARD = "def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):\n    {}\n"


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "model" / "config.json").read_text())


def weights(change: Callable[[dict[str, list[int]]], object], dtype: str = "BF16") -> Spoil:
    """Weights with other tensors than the configuration says."""

    def spoil(folder: Path) -> None:
        shapes = shapes_of(config_of(folder))
        change(shapes)
        write_weights(folder / "model", shapes, dtype)

    return spoil


def named(old: str, new: str) -> Spoil:
    return weights(
        lambda shapes: [shapes.__setitem__(new + key.removeprefix(old), shapes.pop(key)) for key in list(shapes)]
    )


def config(**changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        made = {key: value for key, value in {**config_of(folder), **changes}.items() if value is not None}
        (folder / "model" / "config.json").write_text(json.dumps(made))

    return spoil


def sharded(folder: Path) -> None:
    """The weights in two files with an index."""
    model, shapes = folder / "model", sorted(shapes_of(config_of(folder)).items())
    (model / "model.safetensors").unlink()
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, part in zip(files, (shapes[:4], shapes[4:]), strict=True):
        write_weights(model, dict(part), name=file)
    index = {name: files[place >= 4] for place, (name, _) in enumerate(shapes)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def lost_shard(folder: Path) -> None:
    sharded(folder)
    (folder / "model" / "model-00002-of-00002.safetensors").unlink()


def adapter(folder: Path) -> None:
    model = folder / "model"
    for name in ("config.json", "model.safetensors"):
        (model / name).unlink()
    write_weights(
        model,
        {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": [4, 8]},
        name="adapter_model.safetensors",
    )
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')


def template(text: str, *rows: dict[str, Any]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / "model" / "chat_template.jinja").write_text(text)
        write_job(folder, **EXACT, **LONG)
        if rows:
            (folder / "train.jsonl").write_bytes(lines(*rows))

    return spoil


def rows(*given: dict[str, Any], **changes: Any) -> Spoil:
    def spoil(folder: Path) -> None:
        write_job(folder, **{**EXACT, **changes})
        (folder / "train.jsonl").write_bytes(lines(*given))

    return spoil


def reward(body: str) -> Spoil:
    def spoil(folder: Path) -> None:
        write_job(folder)
        (folder / "recipe.py").write_text(REWARD.format(body))

    return spoil


def packed(data: bytes, name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(data)
        write_job(folder, **EXACT, dataset={"train": {"huggingFace": {"path": name}}})

    return spoil


def foreign(text: str) -> Spoil:
    return lambda folder: (folder / "job.yaml").write_text(text)


def fixed(training: str, *given: dict[str, Any]) -> Spoil:
    block = {"name": training, "batchSize": 4, "epochs": 1, "maxTokens": 16}
    none = {"rollout": None, "algorithm": None, "recipe": None}
    return rows(*given, **none, reward=None, training=block, dataset={"train": {"jsonl": "train.jsonl"}})


GOOD = [{"prompt": f"{n}=", "answer": str(n)} for n in range(40)]
PACKED = gzip.compress(lines(*GOOD * 50), mtime=0)
BROKEN: dict[str, tuple[Spoil, str]] = {
    # weights
    "a matrix turned round": (weights(lambda s: s.update({"model.layers.0.mlp.up_proj.weight": [8, 16]})), "up_proj.weight of layer 0 is [8, 16]"),
    "a shard that isn't there": (lost_shard, "is named by the index and isn't there"),
    "no output layer, and not tied": (weights(lambda s: s.pop("lm_head.weight")), "there is no lm_head.weight"),
    "no last norm": (weights(lambda s: s.pop("model.norm.weight")), "the norm behind the last layer"),
    "more layers are said": (config(num_hidden_layers=3), "layer 1 isn't there"),
    "other key heads are said": (config(num_attention_heads=2, head_dim=4, num_key_value_heads=1), "k_proj.weight of layer 0"),
    "another vocabulary is said": (config(vocab_size=64), "the embedding model.embed_tokens.weight is [16, 8]"),
    "eight-bit weights": (weights(lambda s: None, "F8_E4M3"), "quantised weights can't be trained"),
    "a configuration of quantised weights": (config(quantization_config={"quant_method": "awq"}), "is quantised (awq)"),
    "names of a wrapper": (named("", "module."), "begin with 'module.model.'"),
    "matrices of an adapter": (weights(lambda s: s.update({"model.layers.0.mlp.up_proj.lora_A.weight": [2, 8]})), "adapter that wasn't merged"),
    "an adapter alone": (adapter, "is a LoRA adapter of org/base"),
    "a mixture": (config(num_experts=8), "is a mixture of experts"),
    # ends and templates
    "an end outside the vocabulary": (config(eos_token_id=99), "eos_token_id 99 is outside its vocabulary of 16"),
    "no end at all": (config(eos_token_id=None), "names a token that ends an answer"),
    "a template without system messages": (template(WITHOUT_SYSTEM, *SYSTEM_ROWS), "leaves out or rewrites message 0 (role system)"),
    "a template that refuses": (template(REFUSING, *SYSTEM_ROWS), "no system here"),
    "a template that is none": (template("{% for m in %}"), "the chat template"),
    # rows
    "an image": (rows({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "answer": "1"}, **LONG), "image"),
    "another column": (rows({"ask": "1=", "answer": "1"}), 'train.jsonl:1: column "messages"'),
    "no gold": (rows(*GOOD, {"prompt": "1=", "answer": None}), "train.jsonl:41"),
    "a gold by another path": (rows(*GOOD, reward={"verifier": "exact", "answerField": "reward_model.ground_truth"}), "reward_model.ground_truth"),
    "rows cut off within their packing": (packed(PACKED[:-40], "rows.jsonl.gz"), "rows.jsonl.gz"),
    "a row of another shape": (rows(*GOOD, {"instruction": "1=", "answer": "1"}), "train.jsonl:41"),
    "an empty answer": (fixed("SFT", *GOOD, {"prompt": "1=", "answer": " "}), "train.jsonl:41"),
    "a pair of equals": (fixed("DPO", *[{"prompt": "1=", "chosen": "1", "rejected": "1"}] * 9), "chosen and rejected are the same"),
    # the recipe
    "a reward that raises on a wrong answer": (reward("return float(int(completions) == int(answer))"), "recipe.py:2: the recipe's reward raised ValueError"),
    "a reward that returns nothing": (reward("float(completions == answer)"), "returned None (NoneType), not a number"),
    "a reward that is not finite": (reward("return float('nan') if completions != answer else 1.0"), "the recipe's reward returned nan"),
    # other people's files
    "AReaL's file": (foreign("experiment_name: a\ntrial_name: b\nactor: {path: x}\ngconfig: {n_samples: 4}\n"), "is an AReaL configuration"),
    "verl's file": (foreign("actor_rollout_ref: {model: {path: x}}\ntrainer: {total_epochs: 3}\n"), "areal convert"),
    "TRL's file": (foreign("model_name_or_path: org/model\nnum_generations: 8\n"), "areal convert"),
}  # fmt: skip


def draw(folder: Path, rng: random.Random) -> None:
    """A good job of a drawn kind: model, tokenizer, rows and who scores."""
    make_model(folder / "model")
    made = config_of(folder) | {
        "num_hidden_layers": rng.choice([1, 2, 3]), "num_attention_heads": rng.choice([1, 2, 4]),
        "intermediate_size": rng.choice([12, 16, 24]), "vocab_size": rng.choice([16, 12, 64]),
        "tie_word_embeddings": rng.choice([True, False]), "eos_token_id": rng.choice([11, [11, 3]]),
    }  # fmt: skip
    made["num_key_value_heads"] = rng.choice([heads for heads in (1, 2, 4) if made["num_attention_heads"] % heads == 0])
    made["max_position_embeddings"] = 128
    (folder / "model" / "config.json").write_text(json.dumps(made))
    write_weights(folder / "model", shapes_of(made), rng.choice(["BF16", "F32"]))
    if rng.random() < 0.3:
        sharded(folder)
        write_weights(folder / "model", {"tok_embeddings.weight": [2, 2]}, name="consolidated.safetensors")
    if chat := rng.random() < 0.5:
        (folder / "model" / "chat_template.jinja").write_text(TEMPLATE)
    asked = [f"{number}+{number}=" for number in range(rng.choice([8, 60]))]
    shape = rng.choice(["prompt", "question", "instruction", *(["messages", "conversations"] if chat else [])])
    given = [{**_asked(shape, text), "answer": str(place), "source": "made"} for place, text in enumerate(asked)]
    name, data = _file(
        rng.choice(["jsonl", "json", "gz", *(["csv"] if shape in ("prompt", "question") else [])]), given
    )
    (folder / name).write_bytes(data)
    source = {"jsonl": name} if name.endswith(".jsonl") else {"huggingFace": {"path": name}}
    score = rng.choice([EXACT, EXACT, {}])
    (folder / "recipe.py").write_text(
        REWARD.format(rng.choice(["return float(completions == answer)", "return answer in completions"]))
    )
    write_job(
        folder,
        dataset={"train": source},
        rollout={"maxSampleTokens": 120, "maxConcurrentRollouts": 8, "sampling": {"maxNewTokens": 4}},
        **score,
    )


def _asked(shape: str, text: str) -> dict[str, Any]:
    if shape == "messages":
        return {"messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": text}]}
    if shape == "conversations":
        return {"conversations": [{"from": "human", "value": text}]}
    return {shape: text}


def _file(kind: str, given: list[dict[str, Any]]) -> tuple[str, bytes]:
    if kind == "json":
        return "rows.json", json.dumps(given).encode()
    if kind == "gz":
        return "rows.jsonl.gz", gzip.compress(lines(*given))
    if kind == "jsonl":
        return "rows.jsonl", lines(*given)
    text = io.StringIO()
    table = csv.DictWriter(text, list(given[0]))
    table.writeheader()
    table.writerows(given)
    return "rows.csv", text.getvalue().encode()
