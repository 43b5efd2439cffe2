"""Tiny mixtures of experts, and samples with the experts that the model itself chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from areal.expert_routes import RouterMode, route_shape, rows_of
from areal.v1 import common_pb2 as common
from areal.values.generation import ROUTES
from areal.values.routes import MISSING
from areal_trainer.data.batch import TokenBatch, columns
from support.tiny_families import MORE, SIZES
from support.trainer_parts import VOCABULARY
from transformers import AutoConfig, AutoModelForCausalLM


def made(path: Path, family: str, **more: int) -> torch.nn.Module:
    torch.manual_seed(4)
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**SIZES, **MORE[family], **more})).eval()
    with torch.no_grad():
        for tensor in lm.parameters():
            unit = torch.randn_like(tensor) / tensor.shape[-1] ** 0.5 if tensor.dim() > 1 else tensor
            tensor.copy_(torch.randn_like(tensor) * 0.1 if tensor.abs().max() == 0 else unit if more else tensor * 3)
    lm.save_pretrained(path)
    return lm


def with_routes(lm: torch.nn.Module, samples: list[common.Sample]) -> TokenBatch:
    """The samples' columns, with the experts that each sequence's own whole pass chooses."""
    shape = route_shape(lm)
    assert shape is not None
    for made in samples:
        for sequence in made.sequences:
            ids = torch.from_numpy(np.frombuffer(sequence.token_ids, "<i4").astype(np.int64))
            with torch.no_grad(), RouterMode(shape) as mode:
                lm(input_ids=ids[None, :-1], use_cache=False)
            rows = rows_of(shape, mode.chosen)
            unknown = np.full((1, rows.shape[1]), MISSING, np.uint8)
            sequence.attachments.add(kind=ROUTES, data=np.concatenate([rows, unknown]).tobytes())
    return columns(samples, VOCABULARY)
