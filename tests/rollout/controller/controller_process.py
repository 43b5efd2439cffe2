"""A controller in a process of its own, so that a test can kill it: `python controller_process.py SETTINGS.json`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from areal.ledger.async_client import AsyncLedger
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.rollout.controller.assemble import ControllerPaths, Parts, serve
from areal.rollout.controller.rows import PreparedRows
from areal.rollout.controller.settings import ControllerSettings


async def main(given: dict[str, Any]) -> None:
    root = Path(given["root"])
    evaluation = root / "evaluation"
    rows = PreparedRows(root / "train", evaluation if evaluation.exists() else None, seed=7)
    paths = ControllerPaths(root / "fences", root / "journal.jsonl", root, root / "evaluations.jsonl")
    async with AsyncLedger(given["redis"], given["job"], retry_for_s=0.5) as ledger:
        parts = Parts(
            job=given["job"],
            access=given["token"],
            settings=ControllerSettings(**given["settings"]),
            paths=paths,
            rows=rows,
            ledger=ledger,
            metrics=RoleMetrics("controller", given["job"]),
            waits=WaitRegistry("controller"),
            progress=ProgressCounter(),
        )
        await serve(parts, given["port"], asyncio.Event())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
