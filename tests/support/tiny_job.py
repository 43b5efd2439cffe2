"""A job whose files are real and tiny: a model directory without weights worth the name, a dataset, a recipe.

Enough for everything up to the start of roles, and for a role table of dummies.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

RECIPE = "def reward(prompt, completions, prompt_ids, completion_ids, **row):\n    return 1.0\n"


def make_tiny_job(folder: Path, *, vocabulary: int = 16, answer: bool = True) -> Path:
    """Write `job.yaml` and all it names below `folder`; answers the job file."""
    make_model(folder / "model", vocabulary)
    for name in ("train", "heldout"):
        rows = [{"prompt": f"{number}=", **({"answer": str(number)} if answer else {})} for number in range(64)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.py").write_text(RECIPE)
    return write_job(folder)


def make_model(model: Path, vocabulary: int = 16) -> None:
    """A model directory that passes every look at it, without weights worth the name."""
    model.mkdir(parents=True)
    words = {str(digit): digit for digit in range(10)} | {"=": 10, "<eos>": 11}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(model / "tokenizer.json"))
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": vocabulary, "eos_token_id": 11,
        "max_position_embeddings": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "hidden_size": 8,
        "rms_norm_eps": 1e-6, "intermediate_size": 16, "head_dim": 8,
    }  # fmt: skip
    (model / "config.json").write_text(json.dumps(config))
    write_weights(model, shapes_of(config))


def shapes_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes of a dense model's weights as transformers saves them, of Qwen3's kind."""
    vocabulary, hidden, inner = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    heads, width = config["num_attention_heads"], config["head_dim"]
    keys = config.get("num_key_value_heads", heads) * width
    found = {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden]}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = [vocabulary, hidden]
    layer = {
        "self_attn.q_proj": [heads * width, hidden], "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, heads * width],
        "self_attn.q_norm": [width], "self_attn.k_norm": [width], "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner], "input_layernorm": [hidden],
        "post_attention_layernorm": [hidden],
    }  # fmt: skip
    for number in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return found


def write_weights(
    model: Path, shapes: dict[str, list[int]], dtype: str = "BF16", name: str = "model.safetensors"
) -> Path:
    """A file of zeros with these tensors; its data is a hole, so that it may be large."""
    sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I8": 1}
    header, end = {}, 0
    for tensor, shape in shapes.items():
        start, end = end, end + math.prod(shape) * sizes[dtype]
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file = model / name
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)
    return file


def write_job(folder: Path, **changes: Any) -> Path:
    """Write `job.yaml`; `changes` replace whole blocks of the spec."""
    spec: dict[str, Any] = {
        "model": {"path": "model"},
        "recipe": {"file": "recipe.py"},
        "dataset": {"train": {"jsonl": "train.jsonl"}, "evaluation": {"jsonl": "heldout.jsonl"}},
        "rollout": {"maxSampleTokens": 16, "maxConcurrentRollouts": 8, "sampling": {"maxNewTokens": 4}},
        "algorithm": {"name": "GRPO", "groupSize": 2, "batchSize": 4, "maxSteps": 3},
        "optimizer": {"learningRate": 1e-4},
    }
    spec = {name: block for name, block in {**spec, **changes}.items() if block is not None}
    job = {"apiVersion": "areal.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "tiny"}, "spec": spec}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path
