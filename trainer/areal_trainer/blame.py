"""Owner of what a trainer failed with.

An `ArealError` says it. Another rank or a device that went away is the world's fault (75), anything else without an
owner is ours (70).
"""

from areal.errors import ArealError, Cause, InfraError, as_bug, of_machine

_GLOO_LOST = ("onnection closed by peer", "imed out waiting", "onnection reset by peer")  # it has no type of its own


def blamed(error: Exception) -> ArealError:
    """`error` with its owner."""
    import torch

    if isinstance(error, ArealError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return InfraError(str(error), fix="docs/gpus.md says what lowers a step's memory", cause=Cause.NO_MEMORY)
    gloo = isinstance(error, RuntimeError) and any(words in str(error) for words in _GLOO_LOST)
    if isinstance(error, torch.distributed.DistError) or gloo:
        return InfraError(f"another rank was lost: {error}", fix="see the log of the rank that ended first")
    if (failed := of_machine(error)) is not None:
        return failed
    return InfraError(str(error)) if isinstance(error, OSError) else as_bug(error)
