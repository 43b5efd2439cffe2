"""Names of a checkpoint: which strided view of which of a module's tensors each tensor of its files is.

Hugging Face's modules hold some tensors otherwise than their files: experts stacked, gate and up in one matrix, under
other names. The library's own conversion for saving, run on tensors without memory, says what lies where, so that
loading, publishing and checksums need no code for any family. Nothing is read and nothing is computed.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from areal.errors import DataError


@dataclass(frozen=True)
class View:
    """One tensor of a file within a module's tensor."""

    tensor: str  # the module's name of it
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """The file's tensor, sharing memory with a contiguous `whole`."""
        return whole.as_strided(self.size, self.stride, whole.storage_offset() + self.offset)

    @property
    def turned(self) -> "View":
        """The same numbers with the last two dimensions the other way round."""
        size, stride = ((*each[:-2], *each[:-3:-1]) for each in (self.size, self.stride))
        return View(self.tensor, self.offset, size, stride)

    def seen(self, shape: tuple[int, ...]) -> "View":
        """Itself, or turned where a file's tensor has that shape: transformers saves some otherwise than released."""
        return self.turned if len(shape) == 3 and self.stride[-2] == 1 and shape == self.turned.size else self

    def within(self, shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[int, ...]]:
        """Its part of a tensor of `shape`, and the dimensions of that part in the file's order; others are single."""
        strides = torch.empty(shape, device="meta").stride()
        begins, rest = [], self.offset
        for stride in strides:
            begins.append(rest // stride)
            rest %= stride
        ends, order = [begin + 1 for begin in begins], []
        for size, stride in zip(self.size, self.stride, strict=True):
            found = [
                at for at, other in enumerate(strides) if other == stride and at not in order and shape[at] >= size
            ]
            if not found:
                raise DataError(f"a part of {self.tensor} is no range of it", fix="use a model of another family")
            order.append(found[0])
            ends[found[0]] = begins[found[0]] + size
        return tuple(slice(begin, end) for begin, end in zip(begins, ends, strict=True)), tuple(order)


def file_views(lm: Any) -> dict[str, View]:
    """The view of each tensor that `save_pretrained` would write of a Hugging Face model, by the file's name.

    `lm` may lie on the meta device. Raises DataError where a file's tensor is put together from several.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    tied = set(lm.all_tied_weights_keys or {}) if getattr(lm.config, "tie_word_embeddings", False) else set()
    state = {name: tensor for name, tensor in lm.state_dict().items() if name not in tied}
    metas = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}
    origin = {_storage(meta): name for name, meta in metas.items()}
    with _NoCopies():
        found = revert_weight_conversion(lm, dict(metas))
    # Turned in released files, and read by their shape; `save_pretrained` forgets that, and SGLang can't read it then.
    mapped = get_model_conversion_mapping(lm, add_legacy=False)
    unsure = [
        each for each in mapped if any(getattr(op, "check_dims", False) for op in getattr(each, "operations", ()))
    ]
    turned = tuple(pattern for each in unsure for pattern in each.source_patterns)
    views = {}
    for name, tensor in found.items():
        view = View(origin[_storage(tensor)], tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        views[name] = view.turned if name.endswith(turned) else view
    return views


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _NoCopies(TorchFunctionMode):
    """A copy would forget where it came from."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("contiguous", "clone"):
            return args[0]
        if name in ("cat", "stack", "concat"):
            raise DataError(f"a tensor of the model's files is a {name} of several", fix="use another family")
        return func(*args, **(kwargs or {}))


def stored(lm: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and stored buffers by the module's names, a tied one once."""
    buffers, kept = dict(lm.named_buffers()), set(lm.state_dict())
    return {**dict(lm.named_parameters()), **{name: each for name, each in buffers.items() if name in kept}}
