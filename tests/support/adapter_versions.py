"""Published LoRA adapters of one model, made and scored by peft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import peft
import torch
from areal.values.policy import PolicyId
from areal.weights.adapter import ADAPTER_CONFIG, AdapterConfig, base_checksums
from areal.weights.manifest import Canary
from areal.weights.publish import WeightsRef, open_staging, seal
from areal.weights.shards import write_part
from transformers import AutoModelForCausalLM

RANK = 4


class AdapterVersions:
    """Adapters of rank 4, each a little away from the one before."""

    def __init__(
        self, root: Path, model: Path, targets: tuple[str, ...], canary: tuple[int, ...], size: float = 1.0
    ) -> None:
        """`size` is that of the first adapter's B, beside peft's random one: deep models bear little."""
        self._root, self._model, self._targets, self._canary = root, model, targets, canary
        torch.manual_seed(1)
        plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        config = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(targets), init_lora_weights=False)
        self._lora = peft.get_peft_model(plain, config)
        for name, tensor in self._lora.state_dict().items():
            if "lora_B" in name:
                tensor *= size

    def publish(
        self, policy: PolicyId, *, step: float, dtype: torch.dtype, tolerance: float, canary_off: float = 0.0
    ) -> WeightsRef:
        """The next adapter, each number of its B `step` times a normal one away; the canary may be told wrongly."""
        random = torch.Generator().manual_seed(policy.version)
        for name, tensor in self._lora.state_dict().items():
            if "lora_B" in name:
                tensor += step * torch.randn(tensor.shape, generator=random)
        logprobs = [value + canary_off for value in self.logprobs(self._canary[:1], self._canary[1:])]
        canary = Canary(token_ids=self._canary, logprobs=(0.0, *logprobs), tolerance=tolerance)
        staging = open_staging(self._root, policy)
        part = write_part(staging, 0, [_source(name, tensor.to(dtype)) for name, tensor in self._tensors().items()])
        files = {ADAPTER_CONFIG: AdapterConfig(RANK, RANK, self._targets).to_bytes("base")}
        return seal(self._root, staging, policy, [part], canary, files, frozen=base_checksums(self._model))

    def logprobs(self, prompt: tuple[int, ...] | list[int], made: tuple[int, ...] | list[int]) -> list[float]:
        """Of each token of `made` after `prompt`, with the newest adapter."""
        with torch.no_grad():
            table = self._lora(input_ids=torch.tensor([[*prompt, *made]])).logits[0].log_softmax(-1)
        return [float(table[len(prompt) - 1 + place, token]) for place, token in enumerate(made)]

    def _tensors(self) -> dict[str, torch.Tensor]:
        return dict(peft.get_peft_model_state_dict(self._lora))


def _source(name: str, tensor: torch.Tensor) -> tuple[str, str, tuple[int, ...], np.ndarray]:
    if tensor.dtype is torch.bfloat16:
        return name, "BF16", tuple(tensor.shape), tensor.view(torch.int16).numpy()
    return name, "F32", tuple(tensor.shape), np.ascontiguousarray(tensor.numpy())
