"""Routes as bytes: what an engine told of all layers, without what no router can have chosen."""

from __future__ import annotations

import numpy as np
import pytest
from areal.values.routes import MISSING, RouteShape
from hypothesis import given
from hypothesis import strategies as st

SHAPE = RouteShape(layers=3, routed=(1, 2), experts=8, chosen=2)


def told(*tokens: list[list[int]]) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


def test_layers_without_a_router_are_unknown_whatever_the_engine_told_of_them() -> None:
    rows = SHAPE.rows_of_layers(told([[7, 7], [0, 1], [5, 2]], [[-9, 400], [3, 2], [6, 7]]))
    assert rows is not None
    assert rows.tolist() == [[MISSING, MISSING, 0, 1, 5, 2], [MISSING, MISSING, 3, 2, 6, 7]]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        told([[0, 1], [0, 1], [0, 1]])[:-4],
        told([[0, 1], [0, 0], [0, 1]]),
        told([[0, 1], [0, 8], [0, 1]]),
        told([[0, 1], [0, -1], [0, 1]]),
        told([[0, 0], [0, 0], [0, 0]]),
    ],
    ids=["nothing", "cut", "twice", "beyond", "below", "zeros"],
)
def test_what_no_router_can_have_chosen_is_no_row(wrong: bytes) -> None:
    assert SHAPE.rows_of_layers(wrong) is None


@given(st.integers(2, 300), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_rows_have_every_id_in_one_byte_or_in_two(experts: int, chosen: int, tokens: int, seed: int) -> None:
    chosen = min(chosen, experts)
    shape = RouteShape(4, (0, 3), experts, chosen)
    draw = np.random.default_rng(seed)
    ids = np.stack([draw.permutation(experts)[:chosen] for _ in range(tokens * 4)]).reshape(tokens, 4, chosen)
    rows = shape.rows_of_layers(ids.astype("<i4").tobytes())
    assert rows is not None
    assert rows.shape == (tokens, shape.row_bytes)
    read = rows.view("<i2" if shape.wide else "u1").reshape(tokens, 4, chosen)
    assert (read[:, [0, 3]] == ids[:, [0, 3]]).all()
    assert (rows.reshape(tokens, 4, -1)[:, [1, 2]] == MISSING).all()
