"""Defaults that follow from GPUs, as values of a job file and as conditions in CEL.

Owns what an engine is where GPUs are named and the file says nothing: GPUs of its own, and bfloat16. Both faces are
here, so that the API server's rules and ours speak of the same value. Pure.
"""

from collections.abc import Mapping
from typing import Any

GPU = "nvidia.com/gpu"  # The extended resource of the NVIDIA device plugin

_TRAINER, _ENGINE = "self.spec.trainer", "self.spec.generation.engine"

ENGINE_GPUS_CEL = (
    f"(has({_ENGINE}.gpus) ? {_ENGINE}.gpus : "
    f"({_TRAINER}.gpus > 0 && {_ENGINE}.type == 'sglang' ? "
    f"(has({_ENGINE}.tensorParallel) ? {_ENGINE}.tensorParallel : 1) : 0))"
)
PROCESSES_CEL = f"(has({_TRAINER}.procPerNode) ? {_TRAINER}.procPerNode : ({_TRAINER}.gpus > 0 ? {_TRAINER}.gpus : 1))"
PRECISION_CEL = f"(has({_TRAINER}.precision) ? {_TRAINER}.precision : ({_TRAINER}.gpus > 0 ? 'bfloat16' : 'float32'))"
DTYPE_CEL = (
    f"(has({_ENGINE}.dtype) ? {_ENGINE}.dtype : ({_TRAINER}.gpus > 0 ? {PRECISION_CEL} : "
    f"({ENGINE_GPUS_CEL} > 0 ? 'bfloat16' : 'float32')))"
)


def on_gpus(values: dict[str, Any]) -> dict[str, Any]:
    """A job's `spec` as read, with the engine's defaults filled in where GPUs are named; unchanged otherwise."""
    generation = values.get("generation", {})
    engine = generation.get("engine", {}) if isinstance(generation, dict) else None
    if not isinstance(engine, dict):
        return values
    trainer = values.get("trainer")
    trained_on = _count(trainer, "gpus")
    filled = dict(engine)
    if engine.get("type") == "sglang" and trained_on and "gpus" not in engine:
        filled["gpus"] = engine.get("tensorParallel", engine.get("tensor_parallel", 1))
    if "dtype" not in engine:
        if trained_on:
            filled["dtype"] = trainer.get("precision", "bfloat16") if isinstance(trainer, Mapping) else "bfloat16"
        elif _count(engine, "gpus"):
            filled["dtype"] = "bfloat16"
    return values if filled == engine else {**values, "generation": {**generation, "engine": filled}}


def _count(block: Any, name: str) -> int:
    """A count of a block as read; 0 where it isn't one, which its own field refuses."""
    found = block.get(name, 0) if isinstance(block, Mapping) else 0
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0
