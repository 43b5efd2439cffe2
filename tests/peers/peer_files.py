"""Files of other projects, loaded by path and pinned by digest: what they import and isn't here stands as a blank.

`AREAL_PEERS` names a folder with a checkout of each project. A file is executed as it is, so a function that a later
part of it replaces counts as replaced.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

ROOT = Path(os.environ["AREAL_PEERS"]) if os.environ.get("AREAL_PEERS") else None

FILES = {  # name → (project's folder and file, the first of its SHA-256's digits)
    "verl_math": ("verl/verl/utils/torch_functional.py", "9855e101c19b64c9"),
    "verl": ("verl/verl/trainer/ppo/core_algos.py", "0ec87b90cba24fa0"),
    "verl_correction": ("verl/verl/trainer/ppo/rollout_corr_helper.py", "763158342551bc40"),
    "areal_data": ("AReaL/areal/utils/data.py", "c4d74b9b28a773a6"),
    "areal": ("AReaL/areal/utils/functional/functional.py", "941a88c0c6a08262"),
    "areal_actor": ("AReaL/areal/trainer/ppo/actor.py", "32fa42bdb82943e4"),
    "openrlhf_math": ("OpenRLHF/openrlhf/models/utils.py", "afea248aa7bb2fb0"),
    "openrlhf": ("OpenRLHF/openrlhf/models/loss.py", "21e97ce9a023663a"),
    "openrlhf_maker": ("OpenRLHF/openrlhf/trainer/ppo_utils/experience_maker.py", "435c748a5b804302"),
    "openrlhf_length": ("OpenRLHF/openrlhf/trainer/ppo_utils/length_penalty.py", "71f73c4a720a18a1"),
    "skyrl_math": ("SkyRL/skyrl/backends/skyrl_train/utils/torch_utils.py", "c145636be365b951"),
    "skyrl_correction": ("SkyRL/skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py", "c563bb8d2ff9ea32"),
    "skyrl": ("SkyRL/skyrl/backends/skyrl_train/utils/ppo_utils.py", "cb9d86f1ba8c6317"),
    "prime_rl": ("prime-rl/src/prime_rl/trainer/rl/loss.py", "102b14539a2aa7e4"),
    "prime_rl_grpo": ("prime-rl/src/prime_rl/orchestrator/algo/grpo.py", "7ef8ff7b7c640ae9"),
    "prime_rl_maxrl": ("prime-rl/src/prime_rl/orchestrator/algo/max_rl.py", "d128d53f51ccfdec"),
    "trl": ("trl/trl/trainer/utils.py", "ebdf6145e76ca552"),
    "trl_ppo": ("trl/trl/experimental/ppo/ppo_trainer.py", "195fcbb368ee56b1"),
    "trl_rewards": ("trl/trl/rewards/other_rewards.py", "5944b1686b403e2d"),
}
ALIASES = {  # what one of these imports of another
    "verl.utils.torch_functional": "verl_math",
    "areal.utils.data": "areal_data",
    "openrlhf.models.utils": "openrlhf_math",
    "skyrl.backends.skyrl_train.utils.torch_utils": "skyrl_math",
    "skyrl.backends.skyrl_train.utils.off_policy_correction_utils": "skyrl_correction",
}
REAL = {"torch", "numpy", *sys.stdlib_module_names}


class Blank(ModuleType):
    """Stands for anything: a module, a class to derive from, a decorator that changes nothing."""

    def __init__(self, name: Any = "blank", *_: Any, **__: Any) -> None:
        super().__init__(name if isinstance(name, str) else "blank")
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Blank(name)

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not isinstance(given[0], Blank) else Blank()

    def __getitem__(self, _: Any) -> Any:
        return Blank()

    def __or__(self, _: Any) -> Any:
        return Any

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (object,)


class BlankFinder(MetaPathFinder, Loader):
    """Finds a blank for each module of some packages, before anything that is installed."""

    def __init__(self, packages: set[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return load(ALIASES[spec.name]) if spec.name in ALIASES else Blank(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


def packages_of(source: str) -> set[str]:
    """The packages that a file imports, but for those that are taken as they are."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found - REAL


@contextmanager
def blanks(packages: set[str]) -> Iterator[None]:
    """While it is open, these packages are blanks."""
    finder = BlankFinder(packages)
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in packages}
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
            del sys.modules[name]
        sys.modules.update(hidden)


@cache
def load(name: str) -> ModuleType:
    """The module of that name in FILES. Raises ValueError when its file is another one than the pinned."""
    assert ROOT is not None
    path, digest = ROOT / FILES[name][0], FILES[name][1]
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest):
        raise ValueError(f"{path} is not the pinned file: fetch the commit that docs/testing.md names")
    dotted = ".".join(Path(FILES[name][0]).with_suffix("").parts[1:]).removeprefix("src.")
    spec = importlib.util.spec_from_file_location(dotted, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    own = packages_of(path.read_text()) | {dotted.partition(".")[0]}
    with blanks(own), mock.patch("torch.compile", lambda found=None, **_: found or (lambda later: later)):
        sys.modules[dotted] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module
