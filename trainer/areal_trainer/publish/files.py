"""The files of a Hugging Face directory that are not weights, and tensors in the form that is written."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from areal.weights.shards import TensorSource
from torch import Tensor

from areal_trainer.engine.model import score_architecture

_MODEL_FILES = ("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json")
_TEMPLATE = "chat_template.jinja"
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", _TEMPLATE,
)  # fmt: skip
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def side_files(model: Path, tokenizer: Path, template: str | None = None) -> dict[str, bytes | Path]:
    """Files beside the weights: the model's configuration and the tokenizer's files.

    `template`: the job's chat template, which stands in the tokenizer's place: whoever serves the model renders by it.
    """
    wanted = [(model, _MODEL_FILES), (tokenizer, _TOKENIZER_FILES)]
    found: dict[str, bytes | Path] = {
        name: home / name for home, names in wanted for name in names if (home / name).is_file()
    }
    return found if template is None else {**found, _TEMPLATE: template.encode()}


def score_config(config: Mapping[str, Any], ends: Collection[int]) -> bytes:
    """config.json of a reward model: sequence classification with one label, of the start model's shape.

    transformers takes a sequence's score at its last token that is no padding: a padding token that also ends an answer
    is left out, and transformers then refuses batches instead of scoring another token.
    """
    pad = config.get("pad_token_id")
    changed = {
        **config,
        "architectures": [score_architecture(config)],
        "id2label": {"0": "score"},
        "label2id": {"score": 0},
        "pad_token_id": None if pad in ends else pad,
    }
    return json.dumps(changed, indent=2).encode()


def sources(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[TensorSource]:
    """Tensors on the CPU as name, dtype, shape and bytes, without another copy."""
    for name, tensor in tensors:
        yield (
            name,
            _DTYPES[tensor.dtype],
            tuple(tensor.shape),
            memoryview(tensor.flatten().view(torch.uint8).numpy().data),
        )
