"""`python -m gpu_proof.cell NAME`: measures one cell's claims in this process; a JSON object a line on standard output.

Everything else that is written goes to standard error. `--machine` says what the card is, instead.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_proof.claims import CELLS, Cell

# Before CUDA is there: products whose sums have one order; allocation that can grow instead of fragmenting.
_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
_WHOLE_SEGMENTS = {"handle"}  # cells that hand memory to other processes, which segments that grow can't be
_ROOM = 0.95  # of the card's memory: a cell whose plan needs more isn't tried
_PARENT_DIED = 1  # prctl's PR_SET_PDEATHSIG


class NotTried(Exception):
    """This machine can't try a claim; the message says why."""


@dataclass
class Measuring:
    """What a cell works with: where, and how it says what it measured."""

    cell: Cell
    work: Path
    say: Callable[[dict[str, Any]], None]

    @property
    def device(self) -> Any:
        import torch

        return torch.device("cuda", 0) if self.cuda else torch.device("cpu")

    @property
    def cuda(self) -> bool:
        """Whether there is a card, so nothing stands in for it."""
        import torch

        return torch.cuda.is_available()

    def measured(self, claim: str, value: float, **more: Any) -> None:
        """A claim's number; `more` is what explains it."""
        number = float(value)
        self.say({"claim": claim, "measured": number if math.isfinite(number) else None, "more": more})

    def not_tried(self, claim: str, reason: str) -> None:
        """A claim that this machine can't try."""
        self.say({"claim": claim, "reason": reason})

    def fits(self, size: int, what: str) -> None:
        """Raise NotTried where `size` bytes are more than the card has."""
        import torch

        memory = torch.cuda.mem_get_info()[1] if self.cuda else 0
        if self.cuda and size > _ROOM * memory:
            raise NotTried(f"{what} needs {size / 2**30:.1f} GiB by plan, the card has {memory / 2**30:.1f}")


def named(name: str) -> Cell:
    return next(cell for cell in CELLS if cell.name == name)


def measure(cell: Cell, work: Path, say: Callable[[dict[str, Any]], None]) -> None:
    """Run a cell. A claim that it can't try it says so of; anything else that is raised is a failure of the rest."""
    known: set[str] = set()

    def tell(told: dict[str, Any]) -> None:
        known.add(told["claim"])
        say(told)

    module = importlib.import_module(f"gpu_proof.{cell.module}")
    function = module.FUNCTIONS[cell.name]
    try:
        function(Measuring(cell, work, tell))
    except NotTried as error:
        for claim in cell.claims:
            if claim.name not in known:
                say({"claim": claim.name, "reason": str(error)})


def machine() -> dict[str, Any]:
    """The card as torch sees it."""
    import torch
    from areal.nvidia import Machine

    found: dict[str, Any] = {"torch": torch.__version__, "driver": Machine().driver() or ""}
    if torch.cuda.is_available():
        found |= {
            "card": torch.cuda.get_device_name(0), "cards": torch.cuda.device_count(),
            "memory": torch.cuda.mem_get_info(0)[1],
        }  # fmt: skip
    return found


def main() -> int:
    ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)
    for name, value in _ENVIRONMENT.items():
        if name != "PYTORCH_ALLOC_CONF" or sys.argv[1] not in _WHOLE_SEGMENTS:
            os.environ.setdefault(name, value)
    if sys.argv[1] == "--machine":
        print(json.dumps(machine()))
        return 0
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints

    def say(told: dict[str, Any]) -> None:
        print(json.dumps(told), file=out, flush=True)

    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as work:
        measure(named(sys.argv[1]), Path(work), say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
