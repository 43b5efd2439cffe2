"""A link between the first rank of the policy and the first rank of the frozen models: messages by a gloo pair.

Owns their form on the wire, that of `Ranks.tell`, and its end: whoever dies ends the other's call by an error, whoever
is silent ends it by the deadline. Used by one thread at a time. Never a pickle.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from areal.errors import InfraError
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from areal_trainer.engine.message import Message, decoded, encoded

_POLICY, _FROZEN = 0, 1


class Link:
    """One end. Both are made at the same time: each waits for the other."""

    def __init__(self, store: Store, *, frozen: bool, timeout_s: float) -> None:
        """`timeout_s` is for the other end to be there."""
        from torch.distributed import ProcessGroupGloo

        here = _FROZEN if frozen else _POLICY
        self._other, self._what = _FROZEN - here, "policy" if frozen else "frozen models"
        timeout = timedelta(seconds=timeout_s)
        self._pair: Any = ProcessGroupGloo(PrefixStore("link", store), here, 2, timeout=timeout)

    def send(self, message: Message, timeout_s: float) -> None:
        """Returns once the bytes are under way. Raises InfraError when the other end is gone."""
        raw = encoded(message)
        self._do(lambda: self._pair.send([torch.tensor([raw.numel()])], self._other, 0), timeout_s)
        self._do(lambda: self._pair.send([raw], self._other, 0), timeout_s)

    def receive(self, timeout_s: float) -> Message:
        """The other end's next message. Raises InfraError when it is gone, or silent for `timeout_s`."""
        size = torch.zeros(1, dtype=torch.int64)
        self._do(lambda: self._pair.recv([size], self._other, 0), timeout_s)
        raw: Tensor = torch.zeros(int(size), dtype=torch.uint8)
        self._do(lambda: self._pair.recv([raw], self._other, 0), timeout_s)
        return decoded(raw)

    def _do(self, begin: Any, timeout_s: float) -> None:
        try:
            begin().wait(timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise InfraError(
                f"the first rank of the {self._what} is gone, or was silent for {timeout_s:.0f} s: {error}",
                fix="look at what that process logged last; a restart goes on from the last checkpoint",
            ) from error
