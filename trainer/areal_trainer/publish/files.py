"""The files of a Hugging Face directory that are not weights, and tensors in the form that is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from areal.weights.shards import TensorSource
from torch import Tensor

_MODEL_FILES = ("config.json", "generation_config.json")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def side_files(model: Path, tokenizer: Path) -> dict[str, Path]:
    """What goes beside the weights: the model's configuration and the tokenizer's files."""
    wanted = [(model, _MODEL_FILES), (tokenizer, _TOKENIZER_FILES)]
    return {name: home / name for home, names in wanted for name in names if (home / name).is_file()}


def sources(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[TensorSource]:
    """Tensors on the CPU as name, dtype, shape and bytes, without another copy."""
    for name, tensor in tensors:
        yield (
            name,
            _DTYPES[tensor.dtype],
            tuple(tensor.shape),
            memoryview(tensor.flatten().view(torch.uint8).numpy().data),
        )
