"""`areal operator`: the operator's options. Importing this imports typer only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

LogFormat = Literal["json", "text"]


def operator(
    namespace: Annotated[
        list[str] | None,
        typer.Option(envvar="AREAL_OPERATOR_NAMESPACES", help="Only jobs in this namespace; may be given again."),
    ] = None,
    default_runtime: Annotated[
        str, typer.Option(envvar="AREAL_OPERATOR_DEFAULT_RUNTIME", help="ClusterRLRuntime of jobs that name none.")
    ] = "",
    runtimes: Annotated[
        Path | None, typer.Option(help="Directory of ClusterRLRuntimes, a .json each, to apply while it leads.")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="How to reach the cluster; $KUBECONFIG, else the pod's account.")
    ] = None,
    lease_namespace: Annotated[str, typer.Option(help="Where the leader's Lease is; the pod's namespace.")] = "",
    lease_name: Annotated[str, typer.Option(help="Name of the Lease.")] = "areal-operator",
    identity: Annotated[str, typer.Option(help="Of this process in the Lease; host and pid unless given.")] = "",
    bind: Annotated[str, typer.Option(help="Address of both ports below.")] = "0.0.0.0",
    metrics_port: Annotated[int, typer.Option(help="For /metrics; 0 picks one.")] = 8080,
    health_port: Annotated[int, typer.Option(help="For /healthz and /readyz; 0 picks one.")] = 8081,
    workers: Annotated[int, typer.Option(min=1, help="Jobs that are worked on at once.")] = 4,
    qps: Annotated[float, typer.Option(min=0.1, help="Requests a second to the API server, on average.")] = 50.0,
    burst: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 100,
    metrics_from: Annotated[
        list[str] | None,
        typer.Option(help="Label key=value of namespaces that may read jobs' metrics (again for more), or *."),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(envvar="AREAL_OPERATOR_LOG_FORMAT", help="How to log.")] = "json",
) -> None:
    """Keep what a cluster runs for each RLJob as its spec asks, until SIGTERM."""
    from areal_operator.operator.main import Options, operate

    options = Options(
        namespaces=tuple(namespace or ()),
        default_runtime=default_runtime,
        runtimes=runtimes,
        kubeconfig=kubeconfig,
        lease_namespace=lease_namespace,
        lease_name=lease_name,
        identity=identity,
        bind=bind,
        metrics_port=metrics_port,
        health_port=health_port,
        workers=workers,
        qps=qps,
        burst=burst,
        metrics_from=tuple(metrics_from or ()),
        json_logs=log_format == "json",
    )
    raise typer.Exit(operate(options))
