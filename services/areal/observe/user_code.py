"""Calls of a user's functions as named waits that tell the line they are at: a lock that never opens has a place.

Reads the stack of the calling thread (`sys._current_frames`), as faulthandler does, when somebody asks; a call that
returns soon costs a microsecond.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

from areal.observe.waits import WaitRegistry

WAIT = "user code"
"""The name of these waits."""

T = TypeVar("T")


def told(function: Callable[..., T], waits: WaitRegistry) -> Callable[..., T]:
    """The function, whose calls `waits` lists: which function of which file, and where in it."""
    code = getattr(function, "__code__", None)
    file = code.co_filename if code is not None else ""
    named = f"{getattr(function, '__name__', 'a function')} of {Path(file).name or 'the user'}"

    @functools.wraps(function)
    def called(*args: object, **kwargs: object) -> T:
        thread = threading.get_ident()
        with waits.waiting(WAIT, lambda: f"{named}{_place(sys._current_frames().get(thread), file)}"):
            return function(*args, **kwargs)

    return called


def _place(frame: FrameType | None, file: str) -> str:
    """The innermost line of the file in a stack; empty when it is not there any more."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return f", at line {frame.f_lineno} in {frame.f_code.co_name}" if frame is not None else ""
