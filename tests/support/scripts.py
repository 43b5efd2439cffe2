"""Programs of tools/ as modules, for tests of what they are made of."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def script(name: str) -> ModuleType:
    """tools/NAME, which has no suffix, imported once."""
    known = f"{name}_tool"
    if known not in sys.modules:
        loader = SourceFileLoader(known, str(TOOLS / name))
        spec = spec_from_loader(known, loader)
        assert spec is not None
        module = module_from_spec(spec)
        sys.modules[known] = module
        loader.exec_module(module)
    return sys.modules[known]
