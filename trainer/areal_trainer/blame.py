"""Exit code of a trainer by what it failed with.

An `ArealError` says it. Another rank or a device that went away is the world's fault (75), anything else without an
owner is ours (70).
"""

from __future__ import annotations

from areal.errors import ArealError, ExitCode

_GLOO_LOST = ("onnection closed by peer", "imed out waiting", "onnection reset by peer")  # it has no type of its own


def exit_code(error: Exception) -> ExitCode:
    """The code to exit with after `error`."""
    import torch

    if isinstance(error, ArealError):
        return error.exit_code
    lost = (torch.distributed.DistError, torch.OutOfMemoryError, OSError)
    gloo = isinstance(error, RuntimeError) and any(words in str(error) for words in _GLOO_LOST)
    return ExitCode.INFRA if isinstance(error, lost) or gloo else ExitCode.BUG
