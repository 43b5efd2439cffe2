"""LoRA adapters in peft's layout: names of files and tensors, the configuration, and the base that one belongs to.

An adapter's version holds the two small matrices of each adapted linear layer and no other weight; its manifest names
the checksums of the base's tensors, which every server has from the start model. Never computes.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path

import xxhash

from areal.errors import DataError, InfraError
from areal.weights.safetensors_format import model_files, read_header

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_STEM = "adapter_model"  # of the one safetensors file
_PREFIX = "base_model.model."
_FIX = "Publish the version again."


@dataclass(frozen=True)
class AdapterConfig:
    """What a linear layer adds to its own output: alpha / rank · B·(A·x)."""

    rank: int
    alpha: float
    targets: tuple[str, ...]  # last part of the adapted modules' names: q_proj, …

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def to_bytes(self, base: str) -> bytes:
        """peft's adapter_config.json; `base` says what the adapter belongs to."""
        fields = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": sorted(self.targets),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "use_rslora": False,
            "use_dora": False,
            "modules_to_save": None,
            "inference_mode": True,
        }
        return json.dumps(fields, indent=1, sort_keys=True).encode()

    @classmethod
    def from_dir(cls, path: Path) -> "AdapterConfig":
        """Read a directory's configuration; raises DataError for one that this project doesn't compute."""
        try:
            fields = json.loads((path / ADAPTER_CONFIG).read_bytes())
            read = cls(int(fields["r"]), float(fields["lora_alpha"]), tuple(fields["target_modules"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path / ADAPTER_CONFIG} can't be read: {error}", fix=_FIX) from error
        strange = [name for name in ("use_rslora", "use_dora", "fan_in_fan_out", "modules_to_save") if fields.get(name)]
        if strange or fields.get("bias", "none") != "none" or read.rank < 1:
            raise DataError(f"{path} is an adapter with {strange or 'a bias'}, which is not computed here", fix=_FIX)
        return read


def tensor_name(module: str, matrix: str) -> str:
    """The name of a module's matrix, `A` [rank, in] or `B` [out, rank], in an adapter's file."""
    return f"{_PREFIX}{module}.lora_{matrix}.weight"


def base_checksums(model: Path) -> dict[str, str]:
    """xxh3-128 of each tensor of a model as it lies in its files, by name. Reads all of them."""
    found: dict[str, str] = {}
    try:
        for file in model_files(model):
            start, headers = read_header(file)
            with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for header in headers:
                    with memoryview(data)[start + header.start : start + header.end] as view:
                        found[header.name] = xxhash.xxh3_128_hexdigest(view)
    except OSError as error:
        raise InfraError(f"the base of an adapter at {model} can't be read: {error}") from error
    return found
