"""AReaL on Kubernetes: asynchronous reinforcement learning for language models, one job file, anywhere."""

import importlib
from typing import Any

__version__ = "0.1.0"
_OF_LIBRARY = ("Run", "run")


def __getattr__(name: str) -> Any:
    """`areal.run` and `areal.Run`, loaded at first use: every role imports this package."""
    if name in _OF_LIBRARY:
        return getattr(importlib.import_module("areal.library"), name)
    raise AttributeError(f"module 'areal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_OF_LIBRARY, "__version__"]
