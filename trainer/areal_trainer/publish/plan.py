"""Partition of a model's tensors over ranks: which rank copies and writes which tensor of a published version.

Pure, and the same on every rank. The tensors of one layer stay together, because a family's names in memory may become
a checkpoint's names only by the layer; ranks get about as many bytes each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_LAYER = re.compile(r"^(.*\.layers\.\d+)\.")


def owners(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """The writing rank of each tensor, by name. `sizes` are elements or bytes, all alike.

    Largest first, each to the rank that has least so far.
    """
    layers: dict[str, list[str]] = {}
    for name in sizes:
        found = _LAYER.match(name)
        layers.setdefault(found[1] if found else name, []).append(name)
    weights = {layer: sum(sizes[name] for name in names) for layer, names in layers.items()}
    load = [0] * ranks
    result: dict[str, int] = {}
    for layer in sorted(layers, key=lambda layer: (-weights[layer], layer)):
        rank = load.index(min(load))
        load[rank] += weights[layer]
        result |= dict.fromkeys(layers[layer], rank)
    return result
