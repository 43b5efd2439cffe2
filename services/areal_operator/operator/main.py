"""The operator's process: connects, puts the parts together, runs until it is asked to stop.

Everything that decides is in `reconcile`; everything that keeps it running is in `runtime`.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from areal import __version__
from areal.errors import ConfigError, ExitCode
from areal.observe import logs

from areal_operator.kube.resources import RLJOBS, Key
from areal_operator.operator import default_runtimes
from areal_operator.operator.job_metrics import JobCollector
from areal_operator.operator.reconcile import reconcile
from areal_operator.operator.reports import Asker, Dialer, Poller, by_pod_ip
from areal_operator.operator.watched import watched
from areal_operator.operator.world import DeletedPods, OperatorSettings, OperatorWorld
from areal_operator.runtime.lease import NamespaceClaims
from areal_operator.runtime.manager import Manager, ManagerSettings
from areal_operator.runtime.transport import connect

log = logging.getLogger(__name__)

OTHER_OPERATOR_S = 15.0  # until a namespace that another operator holds is looked at again
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class OperatorOptions(ManagerSettings):
    """What `areal operator` was told. Empty strings mean: find out."""

    identity: str = ""
    lease_namespace: str = ""
    qps: float = 50.0
    burst: int = 100
    default_runtime: str = ""
    runtimes: Path | None = None  # files of the ClusterRLRuntimes to apply
    kubeconfig: Path | None = None
    metrics_from: tuple[str, ...] = ()  # labels `key=value` of namespaces that may scrape jobs; `*` is any namespace
    json_logs: bool = True


def operate(options: OperatorOptions) -> int:
    """Run until SIGTERM or SIGINT; the exit code. Raises LeaseLostError when another operator took over."""
    logs.setup("operator", "", json=options.json_logs)
    asyncio.run(_until_signal(options))
    return int(ExitCode.DONE)


async def _until_signal(options: OperatorOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await run(options, stop)


async def run(options: OperatorOptions, stop: asyncio.Event, *, dialer: Dialer = by_pod_ip) -> None:
    """Run until `stop`. `dialer` says where a pod's ports are reached."""
    settings = manager_settings(options)
    runtimes = default_runtimes.read(options.runtimes) if options.runtimes else []
    transport = await connect(options.kubeconfig)
    try:
        deleted_pods = DeletedPods(time.time)
        manager = Manager(transport, watched(lambda: manager.caches, deleted_pods.add), settings)
        jobs = manager.caches[RLJOBS]
        manager.metrics.registry.register(JobCollector(jobs.all, lambda: manager.election.leads))
        poller = Poller(Asker(dialer, time.time), manager.queue.add)
        told = OperatorSettings(
            default_runtime=options.default_runtime,
            operator_namespace=settings.lease_namespace,
            metrics_from=namespace_labels(options.metrics_from),
        )
        world = OperatorWorld(
            manager.api, manager.caches, manager.recorder, poller, time.time, told, deleted_pods=deleted_pods
        )
        log.info("operator %s", __version__, extra={"identity": settings.identity, "namespaces": settings.namespaces})
        claims = NamespaceClaims(manager.api, f"{settings.lease_namespace}/{settings.lease_name}")

        async def alone(key: Key) -> float | None:
            """Reconcile where no other release does."""
            if other := await claims.other(key[0]):
                if (job := jobs.get(*key)) is not None:
                    told = f"{other} acts in this namespace: let one operator watch it (operator.watchNamespaces)"
                    await manager.recorder.event(job, type="Warning", reason="OtherOperator", message=told)
                world.forget(key)
                return OTHER_OPERATOR_S
            return await reconcile(key, world)

        async def beside() -> None:
            await asyncio.gather(claims.keep(), *([default_runtimes.keep(manager.api, runtimes)] if runtimes else ()))

        try:
            await manager.run(alone, stop, while_leading=beside)
        finally:
            await claims.release()
            await poller.close()
    finally:
        await transport.close()


def manager_settings(options: OperatorOptions) -> ManagerSettings:
    """The runtime's settings, with what was left open filled in."""
    identity = options.identity or f"{os.environ.get('POD_NAME') or socket.gethostname()}-{os.getpid()}"
    lease_namespace = options.lease_namespace or own_namespace()
    return replace(options, identity=identity, lease_namespace=lease_namespace)


def namespace_labels(told: Sequence[str]) -> Mapping[str, str] | None:
    """`key=value` as labels; {} for `*`, None for nothing. Raises ConfigError for anything else."""
    labels: dict[str, str] = {}
    for text in told:
        key, equals, value = text.partition("=")
        if text != "*" and not (key and equals):
            raise ConfigError(f"--metrics-from {text} is no label", fix="give key=value, or * for every namespace")
        if equals:
            labels[key] = value
    return labels if told else None


def own_namespace() -> str:
    """The namespace of this pod."""
    if named := os.environ.get("POD_NAMESPACE"):
        return named
    try:
        return _POD_NAMESPACE.read_text().strip()
    except OSError:
        raise ConfigError(
            "outside of a pod, the operator can't know where its lease belongs", fix="give --lease-namespace"
        ) from None
