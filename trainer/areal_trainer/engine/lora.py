"""LoRA: low-rank adapters on a model's linear layers, with all other weights frozen.

Computes what peft does without dropout: W·x + alpha / rank · B·(A·x), A drawn as Kaiming uniform, B
zero, so that a fresh adapter changes nothing. Adapters are float32 masters; the frozen base is kept in the precision
of the forward pass, for it takes no small steps. With the adapters off the model is its own reference.
"""

import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from areal.errors import DataError
from areal.file_views import View
from areal.weights.adapter import AdapterConfig
from torch import Tensor, nn

from areal_trainer.engine.optimizer import local, region


class LoraAdapter(nn.Module):
    """B·(A·x), on the meta device until the model's weights are loaded."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.lora_A = nn.Linear(inputs, rank, bias=False, device="meta")
        self.lora_B = nn.Linear(rank, outputs, bias=False, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.lora_B(self.lora_A(x))
        return made


class AdaptedLinear(nn.Module):
    """A linear layer with its weights frozen, under their old names, and an adapter beside it."""

    def __init__(self, base: nn.Linear, config: AdapterConfig) -> None:
        super().__init__()
        self.weight = base.weight
        self.bias = base.bias
        self.adapter = LoraAdapter(base.in_features, base.out_features, config.rank)
        self.scale = config.scale
        self.enabled = True

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        return out + self.adapter(x) * self.scale if self.enabled else out


def adapt(lm: nn.Module, config: AdapterConfig, base_dtype: torch.dtype) -> None:
    """Freeze a model on the meta device, with adapters on its target layers. Raises DataError naming unknown ones."""
    found: set[str] = set()
    for name, module in list(lm.named_modules()):
        target = name.rpartition(".")[2]
        if target in config.targets and isinstance(module, nn.Linear) and ".visual." not in name:
            found.add(target)
            parent, _, own = name.rpartition(".")
            setattr(lm.get_submodule(parent), own, AdaptedLinear(module, config))
    if missing := sorted(set(config.targets) - found):
        raise DataError(
            f"the model has no linear layers {', '.join(missing)}", fix="name others in trainer.lora.targets"
        )
    for name, parameter in lm.named_parameters():
        if not is_adapter(name):
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(base_dtype)


def refuse_parts(lm: nn.Module, views: Mapping[str, View], targets: Collection[str]) -> None:
    """Raise DataError for targets of which the model's files (`views` are their tensors) hold more than is adapted.

    Parts of experts, which are one tensor in memory, have the names of linear layers: who reads the adapter would look
    for theirs. And what lies turned in the files is another matrix than the one that is adapted.
    """
    adapted = {f"{name}.weight": m.weight for name, m in lm.named_modules() if isinstance(m, AdaptedLinear)}
    for name, view in views.items():
        if ".visual." in view.tensor:
            continue  # a tower's layers may be called alike: their adapters are none, which changes nothing
        own = name.removesuffix(".weight").rpartition(".")[2]
        weight = adapted.get(view.tensor)
        alike = weight is not None and view.size == tuple(weight.shape) and view.stride == weight.stride()
        if (own in targets or weight is not None) and name.endswith(".weight") and not alike and len(view.size) == 2:
            words = f"the files hold {name}, of which no adapter is trained: it is a part of another tensor here"
            raise DataError(words, fix=f"leave {own} out of trainer.lora.targets")


def known_as(file: str, memory: str) -> str:
    """The name, in an adapter, of the module of a tensor that is called `file` in the model's files: the one that the
    released model's own code has. That of a text model within another stands in the files; others may have older names.
    """
    inside = ".language_model."
    return (file if inside in file and inside not in memory else memory).removesuffix(".weight")


def is_adapter(parameter: str) -> bool:
    """Whether a parameter's name in memory is an adapter's."""
    return ".adapter.lora_" in parameter


def module_and_matrix(parameter: str) -> tuple[str, str]:
    """The adapted module of an adapter's parameter, and which matrix it is: `A` or `B`."""
    module, _, rest = parameter.partition(".adapter.lora_")
    return module, rest[0]


def adapters_of(module: nn.Module) -> list[nn.Module]:
    """All adapters below a module."""
    return [each for each in module.modules() if isinstance(each, LoraAdapter)]


def draw(lm: nn.Module, seed: int) -> None:
    """Fill the adapters' first weights: the same for a seed, whatever the number of ranks."""
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if is_adapter(name):
                part = local(parameter)
                part.zero_()
                if ".lora_A." in name and part.numel():
                    own = tuple(slice(begin, begin + size) for begin, size in region(parameter))
                    part.copy_(_kaiming(name, tuple(parameter.shape), seed)[own])


@contextmanager
def without_adapters(lm: nn.Module) -> Iterator[None]:
    """The base alone."""
    adapted = [module for module in lm.modules() if isinstance(module, AdaptedLinear)]
    for module in adapted:
        module.enabled = False
    try:
        yield
    finally:
        for module in adapted:
            module.enabled = True


def _kaiming(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
    bound = 1 / math.sqrt(shape[1])  # kaiming_uniform_ with a = √5, as peft has it
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
