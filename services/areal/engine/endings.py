"""Finish reasons as SGLang names them, and the search for stop strings."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABORTED: dict[str, Any] = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_QUEUED: dict[str, Any] = {"type": "abort", "message": "Abort in waiting queue"}
NON_FINITE: dict[str, Any] = {
    **ABORTED,
    "message": "the model's logits are not finite: its weights are broken",
    "err_type": "NonFiniteLogits",
}
PARTIAL_BYTES = 8  # tokens before a stop string that may share a character with it


def rid_taken(rid: str) -> dict[str, Any]:
    """The end of a request whose id belongs to another one."""
    return {"type": "abort", "message": f"rid {rid} is in use", "status_code": 400, "err_type": "BadRequest"}


def length(tokens: int) -> dict[str, Any]:
    """All tokens that were asked for were made."""
    return {"type": "length", "length": tokens}


def stop(matched: int | str) -> dict[str, Any]:
    """A stop token or string was made; it is part of the output."""
    return {"type": "stop", "matched": matched}


def matched_text(
    made: NDArray[np.int64], stops: tuple[str, ...], decode_text: Callable[[list[int]], str]
) -> str | None:
    """The stop string that the newest text contains. It is asked after every token, so a tail is enough: a token is at
    least a byte, and what ended earlier was found earlier.
    """
    tail = max(len(text.encode()) for text in stops) + PARTIAL_BYTES
    text = decode_text(made[-tail:].tolist())
    return next((candidate for candidate in stops if candidate in text), None)
