"""The merged export: a start model with an adapter's published version added to its weights, a plain directory.

File by file, in the files' own layout and precision: W + alpha / rank · B·A is added up in float32 and rounded once.
What is served is never merged: in bfloat16 the rounding loses what base and adapter compute apart.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from areal.errors import DataError
from areal.weights.adapter import ADAPTER_STEM, AdapterConfig, tensor_name
from areal.weights.manifest import MANIFEST_NAME
from areal.weights.safetensors_format import INDEX_NAME, model_files
from safetensors.torch import load_file, save_file

from areal_trainer.publish.files import side_files


def merge(base: Path, tokenizer: Path, adapter: Path, target: Path) -> None:
    """Write the merged model to `target`, whole or not at all, with the adapter itself in `target`/adapter."""
    scale = AdapterConfig.from_dir(adapter).scale
    matrices = load_file(adapter / f"{ADAPTER_STEM}.safetensors")
    partial = target.with_name(target.name + ".tmp")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(adapter, partial / "adapter", ignore=shutil.ignore_patterns(MANIFEST_NAME))
    for file in model_files(base):
        tensors = load_file(file)
        for name in tensors:
            module = name.removesuffix(".weight")
            down, up = (matrices.pop(tensor_name(module, matrix), None) for matrix in "AB")
            if down is not None and up is not None:
                weight = tensors[name]
                merged = torch.addmm(weight.float(), up.float(), down.float(), alpha=scale)
                tensors[name] = merged.to(weight.dtype)
        save_file(tensors, partial / file.name, {"format": "pt"})
        shutil.copymode(file, partial / file.name)  # it is written for its owner alone
    if matrices:
        raise DataError(f"{base} has no weight for {min(matrices)}", fix="keep the start model as it was")
    for name, source in side_files(base, tokenizer).items():
        shutil.copyfile(source, partial / name)
    if (base / INDEX_NAME).is_file():
        shutil.copyfile(base / INDEX_NAME, partial / INDEX_NAME)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
