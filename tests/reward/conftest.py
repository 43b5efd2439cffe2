"""Items to score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from areal.v1 import reward_pb2 as pb

MakeItem = Callable[..., pb.ScoreItem]


@pytest.fixture
def item() -> MakeItem:
    """Makes an item: completion, verifier, and the row's columns."""

    def make(completion: str, verifier: str = "custom", deadline_s: float = 0.0, **row: Any) -> pb.ScoreItem:
        return pb.ScoreItem(
            verifier=verifier,
            prompt="3142=",
            completion=completion,
            prompt_ids=np.arange(3, dtype="<i4").tobytes(),
            completion_ids=np.arange(4, dtype="<i4").tobytes(),
            row_json=orjson.dumps(row),
            deadline_s=deadline_s,
        )

    return make
