"""Entry of the role `gateway`: the HTTP address of all agents' sessions, in front of the workers that dial it."""

import logging
import time

from areal.errors import ExitCode
from areal.gateway.faults import secret_of
from areal.gateway.front import Front
from areal.gateway.tunnel import SERVICE_NAME, Tunnels
from areal.net.http_server import HttpServer
from areal.net.listening import inherited
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan.access import session_key_of
from areal.plan.context import RoleContext
from areal.tls import https_server
from areal.v1 import gateway_pb2_grpc as rpc

log = logging.getLogger(__name__)

_DRAIN_S = 5  # for answers under way; the others' clients ask again, and are given them


async def run(ctx: RoleContext) -> int:
    """Serve until asked to stop."""
    waits = WaitRegistry(ctx.name)
    metrics = RoleMetrics("gateway", ctx.resolved.name)
    server = GrpcServer(ctx.name, ctx.access, waits=waits, progress=ctx.progress)
    tunnels = Tunnels(waits, metrics.gauge("areal_gateway_workers"))
    server.add(rpc.add_GatewayServicer_to_server, tunnels, SERVICE_NAME)
    front = Front(tunnels, secret=secret_of(session_key_of(ctx.resolved)), metrics=metrics, clock=time.time)
    ports = ctx.resolved.ports_of(ctx.role, ctx.index)
    http = HttpServer(
        front.app(), ctx.bind, ports["http"], grace_s=_DRAIN_S, listener=inherited("http"), context=https_server()
    )
    try:
        await server.start(ctx.port, ctx.bind)
        metrics.serve(ctx.metrics_port, ctx.bind)
        log.info("serving sessions on port %d", http.start())
        await server.set_ready(True)
        ctx.progress.doing = "handing on the calls of agents"
        await ctx.stop.wait()
        ctx.progress.doing = "draining"
        await server.set_ready(False)
        await http.stop()
    finally:
        await server.stop(0.5)
    return ExitCode.DRAINED
