"""The trainer's connection to the rollout controller, and its own control service.

Owns one loop thread with everything gRPC on it: the heartbeat stream, the calls of the training thread, the server of
this role. Promises that beats go on while the training thread computes, and that after every reconnect the controller
is told the cursor again before anything else. Waits are named and bounded; a fenced answer ends them at once.
"""

import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from areal.errors import ArealError, FencedError, InfraError
from areal.net import status
from areal.net.channel import connect
from areal.net.heartbeat import Backoff
from areal.net.kept_stream import KeptStream, StreamLoss
from areal.net.operations import beat, wait_to_wire
from areal.net.server import LoopThread
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc

_log = logging.getLogger(__name__)
T = TypeVar("T")

CALL_TIMEOUT_S = 10.0  # of one try; an attach compares the whole ledger
OUTAGE_S = 120.0  # a restarted controller is back in seconds; after this the trainer gives up and is restarted itself
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0


class AskedToStop(Exception):
    """SIGTERM came while this trainer waited for the others to be there."""


@dataclass
class Telling:
    """What the beats say; written by the training thread, read by the loop's."""

    step: int = 0
    restored: int = 0  # the step that this process began at
    finished: bool = False
    phase: str = "starting"
    max_steps: int = 0
    tokens_per_s: float = 0.0
    skipped_steps: int = 0
    checkpoint_step: int = 0  # of the newest one on disk
    checkpoint_at: float = 0.0  # unix seconds
    turn: int = 0  # of shared cards: the newest turn after which they were given back
    wants_cards: bool = False


@dataclass
class Orders:
    """What the controller last asked for; written by the loop's thread."""

    checkpoint_now: bool = False
    max_steps: int | None = None
    served_policy_id: str = ""
    evaluation_done: bool = False
    evaluated_rows: int = 0
    turn: int = 0  # of shared cards
    train: bool = False  # the turn is the trainer's
    due: tuple[int, tuple[int, ...]] = (-1, ())  # a step, and complete groups that its batch will have


class ControllerLink:
    """The controller as the training thread sees it: blocking calls that survive its restarts."""

    def __init__(
        self,
        address: str,
        token: str,
        fence: int,
        *,
        thread: LoopThread,
        waits: WaitRegistry,
        progress: ProgressCounter,
        telling: Telling,
        incarnation: str,
        outage_s: float = OUTAGE_S,
    ) -> None:
        self.telling = telling
        self.orders = Orders()
        self._address = address
        self._token = token
        self._fence = fence
        self._thread = thread
        self._waits = waits
        self._progress = progress
        self._incarnation = incarnation
        self._outage_s = outage_s
        self._told: rollout.AdvanceTrainerRequest | None = None
        self._fenced: FencedError | None = None
        self._stream: KeptStream[rollout.TrainerMessage, rollout.TrainerOrders] = KeptStream(
            address,
            token,
            method=lambda channel: rollout_grpc.RolloutStub(channel).Train,
            greet=self._tell_batch,
            hello=lambda: [self._message()],
            report=self._message,
            on_message=self._obey,
            on_lost=self._note,
            what="controller",
        )
        self._stub: Any = thread.call(self._open(), CALL_TIMEOUT_S)

    async def _open(self) -> Any:
        self._channel = connect(self._address, self._token)
        return rollout_grpc.RolloutStub(self._channel)

    # ---- calls of the training thread

    def attach(self, step: int, *, patience_s: float | None = None, stopping: Callable[[], bool] | None = None) -> str:
        """Say where this trainer begins; the controller first compares the ledger with its journal.

        Answers the policy that is served, empty before the first publication. Raises AskedToStop when `stopping`
        says so while the controller isn't there.
        """
        request = rollout.AttachTrainerRequest(fence=self._fence, step=step)
        answer = self._retry(
            "attach",
            "the controller to compare the ledger",
            lambda: self._stub.AttachTrainer(request, timeout=60.0),
            patience_s,
            stopping,
        )
        self._told = None
        self._apply(answer.max_steps)
        self.orders.served_policy_id = answer.served_policy_id
        return str(answer.served_policy_id)

    def advance(self, step: int, groups: int) -> int:
        """Tell of a taken batch, which may be trained after this. Answers the run's length.

        One try. Raises InfraError when the controller is away or the batch changed meanwhile: take it again.
        """
        request = rollout.AdvanceTrainerRequest(fence=self._fence, step=step, groups=groups)
        answer = self._once(lambda: self._stub.AdvanceTrainer(request, timeout=CALL_TIMEOUT_S))
        self._told = request
        self.orders.checkpoint_now |= answer.checkpoint_now
        self._apply(answer.max_steps)
        return int(answer.max_steps)

    def publish(self, weights: common.WeightsRef, final: bool) -> str:
        """Announce a version; answers the policy that is served then. Raises FencedError when it is refused."""
        request = rollout.PublishWeightsRequest(fence=self._fence, weights=weights, final=final)
        answer = self._retry(
            "publish",
            f"the controller to accept policy {weights.policy_id}",
            lambda: self._stub.PublishWeights(request, timeout=CALL_TIMEOUT_S),
        )
        self.orders.served_policy_id = answer.served_policy_id
        if not answer.accepted:
            _log.warning("policy %s was not accepted, %s is served", weights.policy_id, answer.served_policy_id)
        return str(answer.served_policy_id)

    def propose_tombstone(self, group: int, reason: str, detail: str) -> bool:
        """Ask for a group to end untrained."""
        request = rollout.ProposeTombstoneRequest(fence=self._fence, group=group, reason=reason, detail=detail)
        answer = self._retry(
            "tombstone",
            f"the controller to decide about group {group}",
            lambda: self._stub.ProposeTombstone(request, timeout=CALL_TIMEOUT_S),
        )
        return bool(answer.accepted)

    def check(self) -> None:
        """Raise FencedError when the controller said that a newer trainer lives."""
        if self._fenced is not None:
            raise self._fenced

    # ---- the stream

    def start_beats(self) -> None:
        """Open the heartbeat stream and keep it open."""
        self._thread.spawn(self._stream.run())

    def close(self) -> None:
        """End the connection."""
        self._thread.call(self._channel.close(), CALL_TIMEOUT_S)

    async def _tell_batch(self, channel: grpc.aio.Channel) -> None:
        """A controller that restarted hears of the batch in hand before anything else."""
        if self._told is not None:
            await rollout_grpc.RolloutStub(channel).AdvanceTrainer(self._told, timeout=CALL_TIMEOUT_S)

    def _message(self) -> rollout.TrainerMessage:
        told = self.telling
        return rollout.TrainerMessage(
            beat=beat("trainer", self._incarnation, self._progress.value, fence=self._fence),
            step=told.step,
            committed_step=told.checkpoint_step,
            finished=told.finished,
            turn=self.orders.turn if told.finished else told.turn,  # it never takes them again
            wants_cards=told.wants_cards,
            waiting=map(wait_to_wire, self._waits.list()),
        )

    def _obey(self, orders: rollout.TrainerOrders) -> None:
        self.orders.checkpoint_now = orders.checkpoint_now
        self.orders.evaluation_done = orders.evaluation_done
        self.orders.evaluated_rows = orders.evaluated_rows
        self.orders.train, self.orders.turn = orders.train, orders.turn
        self.orders.due = orders.due_step, tuple(orders.due_groups)
        if orders.served_policy_id:
            self.orders.served_policy_id = orders.served_policy_id
        self._apply(orders.max_steps)

    def _apply(self, max_steps: int) -> None:
        if max_steps:
            self.orders.max_steps = max_steps

    def _note(self, lost: StreamLoss) -> None:
        if lost.error is None:
            return
        try:
            status.raise_as(lost.error)
        except FencedError as fenced:
            self._fenced = fenced
            self._stream.end()
        except ArealError:
            pass  # the stream has logged it and is opened again

    # ---- one call

    def _once(self, call: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            try:
                return await call()
            except grpc.RpcError as error:
                status.raise_as(error)

        self.check()
        return self._thread.call(run(), 2 * 60.0)

    def _retry(
        self,
        name: str,
        waits_for: str,
        call: Callable[[], Awaitable[T]],
        patience_s: float | None = None,
        stopping: Callable[[], bool] | None = None,
    ) -> T:
        patience = self._outage_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience
        said = ""
        with self._waits.waiting(name, waits_for, deadline_s=patience):
            backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            while True:
                try:
                    return self._once(call)
                except InfraError as error:
                    delay = backoff.failed()
                    if time.monotonic() + delay > deadline:
                        raise
                    if error.message != said:
                        _log.warning("%s: %s; trying again", name, error.message)
                        said = error.message
                if stopping is not None and stopping():
                    raise AskedToStop
                time.sleep(delay)


class TrainerControl(operations_grpc.TrainerControlServicer):
    """The gRPC service that operators ask for the trainer's step, phase and newest checkpoint."""

    def __init__(self, telling: Telling, progress: ProgressCounter) -> None:
        self._telling = telling
        self._progress = progress
        self._incarnation = secrets.randbits(64)

    async def GetTrainerStatus(
        self, request: operations.GetTrainerStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> operations.GetTrainerStatusResponse:
        told = self._telling
        return operations.GetTrainerStatusResponse(
            policy_id=self._progress.policy_id,
            step=told.step,
            max_steps=told.max_steps,
            phase=told.phase,
            tokens_per_s=told.tokens_per_s,
            skipped_steps=told.skipped_steps,
            checkpoint_step=told.checkpoint_step,
            checkpoint_at=told.checkpoint_at,
            epoch=int(os.environ.get("AREAL_EPOCH", "0")),
            incarnation=self._incarnation,
            steps_made=max(0, told.step - told.restored),
        )
