"""Weight files of a model directory: which are the model's, and the name, shape and dtype of every tensor in them.

Owns the reading of safetensors headers in front of a run, and what speaks against the files as files: an index that
names what isn't there, a tensor told twice, a file that is cut off. Reads no weight and needs no torch.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from areal.errors import DataError
from areal.weights.safetensors_format import TensorHeader, model_files, read_header, read_index

AGAIN = "copy or download the model again"
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")


@dataclass(frozen=True)
class WeightFiles:
    """What the weights of a model directory say of themselves. `tensors`: by name, of all files."""

    tensors: Mapping[str, TensorHeader]

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def matrices(self) -> frozenset[str]:
        """Last part of the names of modules with a matrix: q_proj, embed_tokens, …"""
        return frozenset(
            name.split(".")[-2] for name, each in self.tensors.items() if len(each.shape) == 2 and "." in name
        )


def read_weights(model: Path) -> WeightFiles:
    """Read the headers of a model's weight files.

    Raises DataError for a file that is missing, cut off or none of that format, and for files that contradict their
    index or one another.
    """
    index = read_index(model)
    tensors: dict[str, TensorHeader] = {}
    files = model_files(model)
    for file in files:
        for tensor in _tensors(file):
            if tensor.name in tensors:
                raise DataError(f"{model}: the tensor {tensor.name} is in two files, {file.name} is one", fix=AGAIN)
            if index is not None and index.get(tensor.name) != file.name:
                said = index.get(tensor.name, "no file")
                raise DataError(f"{file} holds {tensor.name}, and the index says that {said} does", fix=AGAIN)
            tensors[tensor.name] = tensor
    if lost := sorted(set(index or ()) - set(tensors)):
        raise DataError(f"{model}: the index names {lost[0]}, which no file holds", fix=AGAIN)
    if (shards := next(_lost_shards(files), None)) is not None:
        raise DataError(f"{model}: {shards}", fix=AGAIN)
    return WeightFiles(tensors)


def _lost_shards(files: list[Path]) -> Iterator[str]:
    """Numbers that lack among files named like model-00001-of-00004.safetensors."""
    numbered = [found for file in files if (found := _SHARD.search(file.name))]
    for count in {int(found[2]) for found in numbered}:
        here = {int(found[1]) for found in numbered if int(found[2]) == count}
        if lost := sorted(set(range(1, count + 1)) - here):
            yield f"file {lost[0]} of {count} isn't there"


def _tensors(file: Path) -> list[TensorHeader]:
    try:
        start, tensors = read_header(file)
        there = file.stat().st_size
    except OSError as error:
        said = "is named by the index and isn't there" if not file.exists() else f"can't be read: {error.strerror}"
        raise DataError(f"{file} {said}", fix=AGAIN) from None
    except DataError as error:
        raise DataError(error.message, fix=AGAIN) from None
    needed = start + max((tensor.end for tensor in tensors), default=0)
    if there < needed:
        raise DataError(f"{file} is cut off: it has {there} of {needed} bytes", fix=AGAIN)
    return tensors
