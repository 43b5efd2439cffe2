"""Entries of the page: `areal view` on loopback, `areal jobs-page` in a pod of the chart's, the role `view` in a job's.

Owns the key and the address that the first prints. The role serves one job to visitors whom the API server lets read
it, from the run directory, which is mounted read-only; the index of the recording lies in its scratch.
"""

import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from areal.distribution import missing_package
from areal.errors import ConfigError
from areal.plan import ResolvedJob
from areal.plan.cluster_names import CLUSTER_CA_KEY, CLUSTER_DIR, HTTP_PORT

from areal_view.pages.runs import Runs


def _say(address: str) -> None:
    print(address, flush=True)


def serve(places: Sequence[Path], port: int, say: Callable[[str], object] = _say) -> None:
    """Serve the runs in `places`. Raises ConfigError when the port is taken or the extra `view` is not installed."""
    try:
        import uvicorn

        from areal_view.pages.app import make_app
    except ImportError as error:
        raise missing_package(error, "view") from error
    runs = Runs(places)
    runs.all()  # a wrong directory is told before anything listens
    listener = _listen(port)
    port, key = listener.getsockname()[1], secrets.token_urlsafe(24)
    one = runs.all()
    path = f"/r/{one[0].name}" if len(one) == 1 else "/"
    say(f"http://127.0.0.1:{port}{path}?key={key}")
    config = uvicorn.Config(
        make_app(runs, key=key, port=port), log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        runs.close()


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()  # whoever reads the address connects at once: it waits for the server, and isn't refused
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port} can't be used: {error.strerror}", fix="choose another --port") from error
    return listener


def serve_jobs(namespaces: Sequence[str], address: str, bind: str, port: int) -> None:
    """Serve the list of a cluster's jobs until SIGTERM. Raises ConfigError outside of a pod."""
    import uvicorn

    from areal_view.pages.job_list import job_list
    from areal_view.pages.reviews import ApiServer

    app = job_list(ApiServer.of_pod(Path(CLUSTER_DIR / CLUSTER_CA_KEY)), namespaces, address)
    uvicorn.run(app, host=bind, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=1)


def run(job: ResolvedJob) -> str:
    """Serve a job's page in a pod of it until SIGTERM. Raises ConfigError outside of a pod."""
    import uvicorn

    from areal_view.pages.app import app_of
    from areal_view.pages.login import PageLogin, SignedTickets, job_door
    from areal_view.pages.reviews import ApiServer, OwnReview

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
