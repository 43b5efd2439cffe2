"""Commands that live in other packages' modules: they run as child processes, so that torch never comes into ours."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from areal.distribution import install
from areal.errors import BugError, ConfigError


def init_model_command(arguments: Sequence[str]) -> int:
    """`areal init-model …`: needs torch; answers the exit code."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("making a model needs torch, which is not installed", fix=install("trainer"))
    return module_command("areal_trainer.init_model", arguments)


def serve_command(arguments: Sequence[str]) -> NoReturn:
    """`areal serve …`: needs torch; this process becomes the server, so that signals reach it."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("serving a model needs torch, which is not installed", fix=install("engine"))
    os.execv(sys.executable, [sys.executable, "-m", "areal.engine.serve", *arguments])


def module_command(module: str, arguments: Sequence[str]) -> int:
    """`python -m module …` in this terminal; answers the exit code."""
    if importlib.util.find_spec(module) is None:
        raise BugError(f"this installation lacks {module}")
    with subprocess.Popen([sys.executable, "-m", module, *arguments]) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the child got it, too
            return process.wait()
