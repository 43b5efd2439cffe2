"""Devices that the trainer shares with the servers: its turns on them.

While the servers have them, parameters and moments are in host memory, and the lock of the cards is free. Rank 0 hears
from the controller whose turn it is; every rank has its own part in the lock, so that a server never finds one late.
"""

import gc
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import torch
from areal.cards import CardLock, CardSide
from areal.errors import InfraError
from areal.observe.waits import WaitRegistry
from torch import Tensor

from areal_trainer.control import AskedToStop, Orders, Telling
from areal_trainer.engine.offload import OffloadedParameters

LOCK_S = 120.0  # from the controller's word until the servers have let go
STOP_S = 20.0  # asked to stop, the trainer waits so long for the cards, to save what it has
_LOOK_S = 0.05


class SharedCards:
    """One rank's cards. Begins without them."""

    def __init__(self, directory: Path, device: torch.device, waits: WaitRegistry) -> None:
        self._lock = CardLock(directory, CardSide.TRAINING)
        self._device = device
        self._waits = waits
        self._tensors: Callable[[], Iterable[Tensor]] = tuple
        self._away: OffloadedParameters | None = None

    def take(self, within_s: float, stopping: Callable[[], bool] = lambda: False) -> None:
        """Have the cards. Raises AskedToStop, and InfraError where the servers keep them for too long."""
        deadline = time.monotonic() + within_s
        with self._waits.waiting("cards", "the servers to let go of the cards", deadline_s=within_s):
            while not self._lock.try_take():
                if stopping():
                    raise AskedToStop
                if time.monotonic() > deadline:
                    raise InfraError(
                        f"the servers kept the cards for {within_s:.0f} s after their turn",
                        fix="see the servers' logs; a run that is started again ends what is left of them",
                    )
                time.sleep(_LOOK_S)

    def holds(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        """What lies on the device as long as this rank has the cards: the same storages at every call."""
        self._tensors = tensors

    def leave(self) -> None:
        """Move everything to host memory and let go of the cards."""
        if self._away is None:
            on_device = (tensor for tensor in self._tensors() if tensor.device.type == self._device.type)
            self._away = OffloadedParameters(on_device, "what the trainer holds")
        else:
            self._away.leave()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.synchronize(self._device)
        self._lock.release()

    def enter(self) -> None:
        """Take the cards, and bring everything back."""
        self.take(LOCK_S)
        if self._away is not None:
            self._away.enter()

    def close(self) -> None:
        """Let go."""
        self._lock.close()


class TrainerTurn:
    """Rank 0's part: when this trainer's turn begins, and what the controller is told of its end."""

    def __init__(
        self, telling: Telling, orders: Orders, waits: WaitRegistry, patience_s: float,
        now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._telling = telling
        self._orders = orders
        self._waits = waits
        self._patience_s = patience_s
        self._now = now
        self._sleep = sleep
        self._waiting = ExitStack()
        self._since = 0.0
        self.asleep = False

    def known(self, within_s: float) -> bool:
        """Whether the controller says whose turn it is, now or within some seconds: what is given back has a number."""
        if not self._orders.turn:
            self._sleep(within_s)
        return self._orders.turn > 0

    def gave_back(self) -> None:
        """All ranks let go of the cards, and what was published is out."""
        self._telling.turn, self._telling.wants_cards = self._orders.turn, False
        self._since, self.asleep = self._now(), True
        words = "its turn on the cards that it shares with the servers"
        self._waiting.enter_context(self._waits.waiting("turn", words, deadline_s=self._patience_s))

    def begun(self, within_s: float, wants: bool) -> bool:
        """Whether the cards are this trainer's now, or within some seconds. `wants` asks for them.

        Raises InfraError after the longest that groups take.
        """
        self._telling.wants_cards = wants
        until = self._now() + within_s
        while not (self._orders.train and self._orders.turn > self._telling.turn):
            if self._now() > self._since + self._patience_s:
                raise InfraError(
                    f"it was not the trainer's turn on the cards for {self._patience_s:.0f} s",
                    fix="`areal status` names what the controller, the workers and the servers wait for",
                )
            if self._now() > until:
                return False
            self._sleep(_LOOK_S)
        return True

    def too_late(self) -> bool:
        """Asked to stop: whether the cards don't come any more."""
        if not self._telling.wants_cards:
            self._since = self._now()
        return self._now() - self._since > STOP_S

    def began(self) -> None:
        """All ranks have the cards."""
        self._waiting.close()
        self.asleep = False
