"""`areal view rljob/NAME`: shows a job on a cluster until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from areal_operator.submit.page import page_of

from areal.cli.job_status import find_job


def job_view_command(name: str, namespace: str | None, kubeconfig: Path | None, context: str | None, port: int) -> None:
    """Print the address, and serve it until Ctrl-C or SIGTERM; then delete what was made for it."""
    signal.signal(signal.SIGTERM, _ended)
    cluster, job = find_job(name, namespace, kubeconfig, context)
    try:
        with page_of(job, cluster, port, lambda text: print(text, file=sys.stderr, flush=True)) as address:
            print(address, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return


def _ended(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
