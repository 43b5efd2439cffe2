"""LoRA: low-rank adapters on a model's linear layers, with all other weights frozen.

Computes what peft does without dropout: W·x + alpha / rank · B·(A·x), A drawn as Kaiming uniform, B
zero, so that a fresh adapter changes nothing. Adapters are float32 masters; the frozen base is kept in the precision
of the forward pass, for it takes no small steps. With the adapters off the model is its own reference.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
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


def file_modules(lm: nn.Module, views: Mapping[str, View]) -> dict[str, str]:
    """The name of each adapted module in the model's files, by which its adapter is known; `views` are their tensors.

    Raises DataError where files hold a module's weights in parts or turned: no adapter of theirs would be this one.
    """
    parts: dict[str, list[str]] = {}
    for name, view in views.items():
        parts.setdefault(view.tensor, []).append(name)
    found: dict[str, str] = {}
    for module, adapted in lm.named_modules():
        if isinstance(adapted, AdaptedLinear):
            names = parts.get(f"{module}.weight", [])
            alike = [name for name in names if views[name].size == tuple(adapted.weight.shape)]
            if names != alike or len(names) != 1 or views[names[0]].stride != adapted.weight.stride():
                fix = f"leave {module.rpartition('.')[2]} out of trainer.lora.targets"
                raise DataError(f"files of this family hold {module} otherwise than it is adapted", fix=fix)
            found[module] = names[0].removesuffix(".weight")
    return found


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
