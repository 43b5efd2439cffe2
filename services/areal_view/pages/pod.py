"""Entry of the role `view`: serves the page of one job in a pod of it, to visitors whom the API server lets read it.

Reads the run directory, which is mounted read-only, and nothing else; the index of the recording lies in its scratch.
"""

from __future__ import annotations

from pathlib import Path

import uvicorn
from areal.plan import ResolvedJob
from areal.plan.cluster_names import CLUSTER_CA_KEY, CLUSTER_DIR, HTTP_PORT

from areal_view.pages.app import app_of
from areal_view.pages.login import PageLogin, SignedTickets, job_door
from areal_view.pages.reviews import ApiServer, OwnReview
from areal_view.pages.runs import Runs


def run(job: ResolvedJob) -> str:
    """Serve until SIGTERM. Raises ConfigError outside of a pod."""
    namespace = job.namespace or ""
    server = ApiServer.of_pod(Path(CLUSTER_DIR / CLUSTER_CA_KEY))
    runs = Runs([job.run_dir], name=job.name)
    review, tickets = OwnReview(server, namespace, job.name), SignedTickets(f"{namespace}/{job.name}")
    guarded = PageLogin(app_of(runs), review, tickets, job_door(job.name, namespace))
    try:
        uvicorn.run(
            guarded, host=job.bind, port=HTTP_PORT, log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
    finally:
        runs.close()
    return "stopped"
