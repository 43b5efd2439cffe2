"""Slabs of host memory: exact bytes, views that share nothing, pinned once each and given back."""

from __future__ import annotations

import gc

import pytest
import torch
from areal.errors import InfraError
from areal_trainer.engine.host_copy import HostSlab, TensorSpec, specs_of
from hypothesis import given
from hypothesis import strategies as st

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.int64)
SPECS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    st.builds(TensorSpec, st.lists(st.integers(0, 5), max_size=3).map(tuple), st.sampled_from(DTYPES)),
    max_size=8,
)


@given(specs=SPECS)
def test_views_are_of_the_asked_shapes_and_share_nothing(specs):
    slab = HostSlab("a test", specs, CPU).touch()
    assert specs_of(slab.views.items()) == specs
    values = {
        name: torch.full(spec.shape, number + 1, dtype=spec.dtype) for number, (name, spec) in enumerate(specs.items())
    }
    slab.fill(values.items())
    assert all(torch.equal(slab.views[name], value) for name, value in values.items())
    assert 0 <= slab.size - sum(spec.size for spec in specs.values()) < 512 * max(1, len(specs))


class Runtime:
    """CUDA's calls for host memory."""

    def __init__(self, code: int = 0) -> None:
        self.code, self.pinned, self.calls = code, {}, []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.calls.append(size)
        self.pinned[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:
        return self.pinned.pop(address) and 0


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def seven_billion(ranks: int) -> dict[str, TensorSpec]:
    """A rank's share of Qwen2.5-7B with float32 moments, as a checkpoint copies it."""
    hidden, inner, keys, vocabulary = 3584, 18944, 512, 152064
    layer = {"q": (hidden, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, hidden)}
    layer |= {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    shapes = {f"{number}.{name}": shape for number in range(28) for name, shape in layer.items()}
    shapes |= {"embed": (vocabulary, hidden), "head": (vocabulary, hidden)}
    return {
        f"{part}.{name}": TensorSpec((rows // ranks, width), torch.float32)
        for part in ("model", "exp_avg", "exp_avg_sq")
        for name, (rows, width) in shapes.items()
    }


def test_what_is_pinned_is_what_is_asked_in_one_call_and_not_the_next_power_of_two(monkeypatch):
    runtime, specs = Runtime(), seven_billion(8)

    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    asked = sum(spec.size for spec in specs.values())
    slab = HostSlab("a test", specs, CUDA)  # its pages are never touched
    assert slab.pinned
    assert runtime.calls == [slab.size]
    assert asked <= slab.size <= 1.001 * asked
    assert sum(power_of_two(spec.size) for spec in specs.values()) > 1.5 * asked, "torch's own allocator"
    view = slab.views["model.embed"]
    del slab
    gc.collect()
    assert runtime.pinned, "a view is still there"
    del view
    gc.collect()
    assert not runtime.pinned


def test_memory_that_cannot_be_pinned_is_an_error_in_words(monkeypatch):
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Runtime(code=2))
    with pytest.raises(InfraError, match="host memory for a test can't be pinned: CUDA error 2"):
        HostSlab("a test", {"w": TensorSpec((4,), torch.float32)}, CUDA)
