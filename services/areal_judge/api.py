"""Public interface of the judge: all that other packages may import of it.

A name is loaded at its first use, so that who asks which tier this machine reaches loads no judge, and a process that
only gives up its rights loads neither. All else in this package is its own business.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_judge.judge.dispatch.executor import StoredSuite as StoredSuite
    from areal_judge.judge.dispatch.values import Priority as Priority
    from areal_judge.judge.dispatch.values import Ticket as Ticket
    from areal_judge.judge.extract import program_of as program_of
    from areal_judge.judge.formats.registry import suite_of as suite_of
    from areal_judge.judge.languages.discovery import Toolchain as Toolchain
    from areal_judge.judge.languages.discovery import find_toolchains as find_toolchains
    from areal_judge.judge.languages.table import LANGUAGES as LANGUAGES
    from areal_judge.judge.stack import StackSettings as StackSettings
    from areal_judge.judge.stack import code_stack as code_stack
    from areal_judge.judge.values import OF_PROGRAM as OF_PROGRAM
    from areal_judge.judge.values import RETRYABLE as RETRYABLE
    from areal_judge.judge.values import CallSuite as CallSuite
    from areal_judge.judge.values import Judgement as Judgement
    from areal_judge.judge.values import Options as Options
    from areal_judge.judge.values import Scoring as Scoring
    from areal_judge.judge.values import Status as Status
    from areal_judge.judge.values import Submission as Submission
    from areal_judge.judge.values import Suite as Suite
    from areal_judge.sandbox.cell.computing_only import confine as confine
    from areal_judge.sandbox.host.probing import probe as probe
    from areal_judge.sandbox.host.tiers import promise as promise
    from areal_judge.sandbox.host.tiers import why_not as why_not
    from areal_judge.sandbox.host.tiers import why_refused as why_refused
    from areal_judge.sandbox.values import MemoryBound as MemoryBound
    from areal_judge.sandbox.values import Powers as Powers
    from areal_judge.sandbox.values import Tier as Tier

_PLACES = {
    "judge.dispatch.executor": ("StoredSuite",),
    "judge.dispatch.values": ("Priority", "Ticket"),
    "judge.extract": ("program_of",),
    "judge.formats.registry": ("suite_of",),
    "judge.languages.discovery": ("Toolchain", "find_toolchains"),
    "judge.languages.table": ("LANGUAGES",),
    "judge.stack": ("StackSettings", "code_stack"),
    "judge.values": (
        "OF_PROGRAM", "RETRYABLE", "CallSuite", "Judgement", "Options", "Scoring", "Status", "Submission", "Suite",
    ),
    "sandbox.cell.computing_only": ("confine",),
    "sandbox.host.probing": ("probe",),
    "sandbox.host.tiers": ("promise", "why_not", "why_refused"),
    "sandbox.values": ("MemoryBound", "Powers", "Tier"),
}  # fmt: skip
_HOME = {name: f"areal_judge.{module}" for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
