"""The agent's stream to the rollout controller: beats with its state go up each half second, wanted weights come down.

The controller is level-triggered: an agent that was away misses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from areal.net.kept_stream import KeptStream
from areal.net.operations import beat, wait_to_wire
from areal.observe.progress import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.v1 import generation_pb2 as generation
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rpc


def controller_stream(
    address: str,
    token: str,
    *,
    name: str,
    incarnation: str,
    state: Callable[[], generation.ServerState],
    on_orders: Callable[[rollout.ServerOrders], None],
    progress: ProgressCounter,
    waits: WaitRegistry,
) -> KeptStream[rollout.ServerMessage, rollout.ServerOrders]:
    """The stream of server `name`; `state` is read for each message."""

    def report() -> rollout.ServerMessage:
        return rollout.ServerMessage(
            beat=beat(name, incarnation, progress.value), state=state(), waiting=map(wait_to_wire, waits.list())
        )

    return KeptStream(
        address,
        token,
        method=lambda channel: rpc.RolloutStub(channel).Serve,
        hello=lambda: [report()],
        report=report,
        on_message=on_orders,
        waits=waits,
        what="controller",
    )
