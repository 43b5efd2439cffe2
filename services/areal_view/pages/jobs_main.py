"""Entry of `areal jobs-page`: serves the list of a cluster's jobs, in a pod of the chart's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import uvicorn
from areal.plan.cluster_names import CLUSTER_CA_KEY, CLUSTER_DIR

from areal_view.pages.job_list import job_list
from areal_view.pages.reviews import ApiServer


def serve_jobs(namespaces: Sequence[str], address: str, bind: str, port: int) -> None:
    """Serve until SIGTERM. Raises ConfigError outside of a pod."""
    app = job_list(ApiServer.of_pod(Path(CLUSTER_DIR / CLUSTER_CA_KEY)), namespaces, address)
    uvicorn.run(app, host=bind, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
