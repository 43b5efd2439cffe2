"""Commands that live in other packages' modules: they run as child processes, so that torch never comes into ours."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from areal.distribution import install
from areal.errors import BugError, ConfigError


def init_model_command(arguments: Sequence[str]) -> int:
    """`areal init-model …`: needs torch; answers the exit code."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("making a model needs torch, which is not installed", fix=install("trainer"))
    return module_command("areal_trainer.init_model", arguments)


def module_command(module: str, arguments: Sequence[str]) -> int:
    """`python -m module …` in this terminal; answers the exit code."""
    if importlib.util.find_spec(module) is None:
        raise BugError(f"this installation lacks {module}")
    with subprocess.Popen([sys.executable, "-m", module, *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child got it, too
            return process.wait()
