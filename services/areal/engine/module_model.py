"""The forward pass of any other family: Hugging Face's own module, exact and slower than functions written by hand.

Nothing here knows a family. A version's weights are a module of their own, so that a swap is a reference assignment;
`file_views` says where in it each tensor of the files lies.
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from areal.engine import held
from areal.engine.model_config import ModelConfig
from areal.engine.module_cache import ModuleCache
from areal.engine.weights import TensorSource, float32_logits, read_tensors
from areal.errors import DataError
from areal.file_views import View, file_views, stored

_APART = 1e-3  # log-probabilities of one token, by a step and by a whole pass, in float32


@dataclass(frozen=True)
class ModuleWeights:
    """All weights of one policy version."""

    lm: Any  # a causal language model of transformers
    file_dtypes: dict[str, torch.dtype]  # of each tensor as it lies in the file


class ModuleModel:
    """A module without memory for its weights, copied for each version."""

    rewinds = False

    def __init__(self, config: ModelConfig, path: Path, dtype: torch.dtype, *, fp32_head: bool = False) -> None:
        """Raises DataError when transformers can't make the model in `path`."""
        self.config = config
        self._dtype = dtype
        self._proved = dtype != torch.float32  # rounding hides what it looks for
        self._empty = _empty_module(path, dtype)
        self._views = _views(self._empty)
        if fp32_head and dtype != torch.float32:
            self._empty.get_output_embeddings().register_forward_hook(_float32_head)

    def new_cache(self) -> ModuleCache:
        """Rows of the library's own cache."""
        from transformers import DynamicCache

        return ModuleCache(lambda: DynamicCache(config=self._empty.config.get_text_config()))

    def load(self, path: Path) -> ModuleWeights:
        """Weights of a Hugging Face directory. Raises DataError naming the tensor that is missing or misshapen."""
        return self.build(path, read_tensors(path))

    def build(self, path: Path, raw: dict[str, Tensor]) -> ModuleWeights:
        """Weights of tensors by Hugging Face name, which are copied. `path` is where they come from, for errors."""
        source = TensorSource(path, raw, self._dtype)
        made = {name: torch.empty_like(each, device="cpu") for name, each in stored(self._empty).items()}
        for name, view in self._views.items():
            view.of(made[view.tensor]).copy_(source.find(name, view.size))
        weights = ModuleWeights(_copied(self._empty, made), {name: tensor.dtype for name, tensor in raw.items()})
        if not self._proved:
            self._prove(weights)
        return weights

    def adapted(self, base: ModuleWeights, path: Path) -> ModuleWeights:
        """Raises DataError: no adapter is computed here."""
        raise DataError(
            f"{path} is an adapter, and a {self.config.architecture} is served by its Hugging Face module without any",
            fix="train without trainer.lora, or use generation.engine.type: sglang",
        )

    def checksums(self, weights: ModuleWeights) -> dict[str, str]:
        """xxh3-128 of each tensor of the weights in use, by the file's name and in the file's dtype."""
        held_now = stored(weights.lm)
        parts = ((name, view.of(held_now[view.tensor].detach())) for name, view in self._views.items())
        return held.digests(parts, weights.file_dtypes)

    def decode(self, weights: ModuleWeights, cache: ModuleCache, tokens: Tensor, positions: Tensor) -> Tensor:
        """Append one token to each of the rows 0…n−1 and return their next-token logits, float32 [n, vocab]."""
        width = int(positions.max())
        mask = torch.arange(width + 1) >= width - positions[:, None]
        logits: Tensor = weights.lm(
            input_ids=tokens[:, None],
            attention_mask=mask.long(),
            position_ids=positions[:, None],
            past_key_values=cache.step(positions),
            use_cache=True,
        ).logits
        return logits[:, -1].float()

    def prefill(
        self, weights: ModuleWeights, cache: ModuleCache | None, tokens: Tensor, rows: Tensor | None, *, hidden: bool
    ) -> Tensor | None:
        """Run whole prompts of one length, int64 [batch, length], into `rows` of the cache.

        With `hidden`, returns the logits of all positions: families end in more than a matrix.
        """
        if cache is not None and rows is not None:
            fresh = cache.empty()
            weights.lm(input_ids=tokens, past_key_values=fresh, use_cache=True, logits_to_keep=1)
            cache.put(rows, fresh, tokens.shape[1])
        if not hidden:
            return None
        logits: Tensor = weights.lm(input_ids=tokens, use_cache=False).logits
        return logits

    def logits(self, weights: ModuleWeights, hidden: Tensor) -> Tensor:
        """Of what `prefill` returned, in float32."""
        return hidden.float()

    @torch.inference_mode()
    def _prove(self, weights: ModuleWeights) -> None:
        """Raise DataError unless two rows of different lengths, stepped together, equal a whole pass of each."""
        ids = torch.arange(3, 15) % self.config.vocab
        longest, cache = len(ids) - 1, self.new_cache()
        for row, start in enumerate((0, longest - 2)):
            self.prefill(weights, cache, ids[None, start:longest], torch.tensor([row]), hidden=False)
        found = self.decode(weights, cache, ids[longest:].repeat(2), torch.tensor([longest, 2]))
        wholes = [weights.lm(input_ids=ids[None, start:], use_cache=False).logits[0, -1] for start in (0, longest - 2)]
        apart = float((found.log_softmax(-1) - torch.stack(wholes).float().log_softmax(-1)).abs().max())
        if not apart <= _APART and bool(torch.stack(wholes).isfinite().all()):
            raise DataError(
                f"a {self.config.architecture} computes a token in a batch otherwise than alone, by {apart:.2g}",
                fix="use generation.engine.type: sglang, or a model of another family",
            )
        self._proved = True


def _empty_module(path: Path, dtype: torch.dtype) -> Any:
    """The model of a configuration on the meta device, with the buffers that it computes itself."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    auto: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        with no_init_weights():
            lm = auto.from_config(config, dtype=dtype).eval().requires_grad_(False)  # experts: grouped_mm
        lm.tie_weights()  # which it leaves out together with drawing them
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:  # of any family's code
        raise DataError(f"the model in {path} can't be made: {error!r}", fix="check its config.json") from error
    return _copied(lm, {name: torch.empty_like(each, device="meta") for name, each in stored(lm).items()})


def _copied(lm: Any, tensors: dict[str, Tensor]) -> Any:
    """A copy with other tensors in the places of the stored ones, tied ones once."""
    memo: dict[int, Any] = {}
    for name, old in stored(lm).items():
        new = tensors[name]
        memo[id(old)] = nn.Parameter(new, requires_grad=False) if isinstance(old, nn.Parameter) else new
    return copy.deepcopy(lm, memo)


def _views(lm: Any) -> dict[str, View]:
    """Of each file's tensor. Raises DataError when the files would leave some of the model out."""
    views, whole = file_views(lm), stored(lm)
    filled = dict.fromkeys(whole, 0)
    for view in views.values():
        filled[view.tensor] += torch.Size(view.size).numel()
    for name, tensor in whole.items():
        if filled[name] != tensor.numel():
            raise DataError(f"the files of this family don't hold all of {name}", fix="use a model of another family")
    return views


def _float32_head(head: Any, inputs: tuple[Tensor, ...], _: Tensor) -> Tensor:
    """Logits that were never rounded to the weights' precision."""
    states = inputs[0]
    logits = float32_logits(states.reshape(-1, states.shape[-1]), head.weight).view(*states.shape[:-1], -1)
    return logits if head.bias is None else logits + head.bias.float()
