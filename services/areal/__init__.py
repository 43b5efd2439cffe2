"""AReaL on Kubernetes: asynchronous reinforcement learning for language models, one job file, anywhere."""

import importlib
from typing import Any

__version__ = "0.1.0"
_LAZY = {
    "Run": ("areal_view.library", "Run"),
    "run": ("areal_view.library", "run"),
    "ClusterRun": ("areal_operator.job_handle", "ClusterRun"),
    "submit": ("areal_operator.job_handle", "submit"),
    "Table": ("areal_view.library", "Table"),
    "open": ("areal_view.library", "open_run"),
}
"""Name → its module and its name there; loaded at first use, since every role imports this package."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, there = _LAZY[name]
        return getattr(importlib.import_module(module), there)
    raise AttributeError(f"module 'areal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_LAZY, "__version__"]
