"""`areal jobs-page`: the page of a cluster's jobs, in a pod of the chart's."""

from __future__ import annotations

from typing import Annotated

import typer


def jobs_page(
    namespace: Annotated[
        list[str] | None, typer.Option(help="List this one; may be given again. All unless given.")
    ] = None,
    job_address: Annotated[
        str, typer.Option(help="Where a job's own page is: https://{name}.{namespace}.rl.example.com")
    ] = "",
    bind: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8000,
) -> None:
    """Serve a web page with the RLJobs that each visitor may list, who logs in with a Kubernetes token. It is what the
    chart's pod `jobs` runs, and needs no right in the cluster.
    """
    from areal_view.pages.jobs_main import serve_jobs

    serve_jobs(namespace or (), job_address, bind, port)
