"""FlashAttention-4's operator with a stand-in for the package: what it is asked, and what its results become.

The package itself is proved on a card, by `make gpu-proof ONLY=attention`, in the same cases.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from areal_trainer.engine import attention, flash
from areal_trainer.engine.attention import SegmentLayout

ROWS = 12
LAYOUT = SegmentLayout(
    query_starts=torch.tensor([0, 5, 8, 12], dtype=torch.int32),
    key_starts=torch.tensor([0, 5, 13, 17], dtype=torch.int32),
    key_index=None, longest_query=5, longest_key=8,
)  # fmt: skip


class Package:
    """The interface of flash_attn.cute, as `VERSION` has it, by scaled dot product attention."""

    def __init__(self) -> None:
        self.asked: list[dict] = []

    def _flash_attn_fwd(self, query, key, value, **more):
        self.asked.append(more)
        out = self._out(query, key, value, more)
        return out, torch.zeros(query.shape[1], query.shape[0]), None, None, None

    def _flash_attn_bwd(self, query, key, value, out, grad, lse, **more):
        self.asked.append(more)
        given = [one.detach().requires_grad_() for one in (query, key, value)]
        with ThreadPoolExecutor(1) as thread:  # inside of an operator autograd is off
            return thread.submit(lambda: torch.autograd.grad(self._out(*given, more), given, grad)).result()

    @staticmethod
    def _out(query, key, value, more):
        layout = SegmentLayout(more["cu_seqlens_q"], more["cu_seqlens_k"], None, 0, 0)
        return attention._one_by_one(query, key, value, layout, more["softmax_scale"])


@pytest.fixture
def package(monkeypatch) -> Package:
    made = Package()
    monkeypatch.setattr(flash, "_interface", lambda: made)
    return made


def states():
    torch.manual_seed(0)
    return [torch.randn(n, heads, 64, requires_grad=True) for n, heads in ((ROWS, 4), (17, 2), (17, 2))]


@pytest.mark.parametrize("compiled", [False, True])
def test_segments_and_their_gradients_are_the_packages(package, compiled):
    found, exact = [], []
    scale = 0.125

    def attend(query, key, value):
        starts = LAYOUT.query_starts, LAYOUT.key_starts, LAYOUT.longest_query, LAYOUT.longest_key
        return flash.flash_attention(query * 1.0, key, value, *starts, scale)[0]

    ours = torch.compile(attend, fullgraph=True, backend="aot_eager") if compiled else attend
    for way, results in ((ours, found), (lambda *of: attention._one_by_one(*of, LAYOUT, scale), exact)):
        given = states()
        out = way(*given)
        results += [out, *torch.autograd.grad((out * torch.arange(64)).sum(), given)]
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other)
    forward, backward = package.asked
    assert (forward["causal"], backward["causal"], backward["deterministic"]) == (True, True, False)
    assert (forward["max_seqlen_q"], forward["max_seqlen_k"], forward["return_lse"]) == (5, 8, True)


def test_it_is_used_on_hopper_alone_in_the_version_that_was_proved(monkeypatch, caplog):
    query = torch.zeros(4, 2, 128, dtype=torch.bfloat16)
    monkeypatch.setattr(flash, "_interface", lambda: SimpleNamespace())
    for capability, taken in (((9, 0), True), ((8, 0), False), ((10, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card, of=capability: of)
        assert flash.takes(query) is taken
        assert not flash.takes(query.float())
        assert not flash.takes(query[..., :96])
    monkeypatch.undo()
    monkeypatch.setattr(flash.metadata, "version", lambda name: "4.0.0b99")
    flash._interface.cache_clear()
    assert flash._interface() is None
    assert "4.0.0b99 isn't used" in caplog.text
    flash._interface.cache_clear()


@pytest.mark.parametrize("there", [False, True])
def test_a_compiled_layer_asks_for_it_in_one_graph(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda card: (9, 0))
    if there:
        monkeypatch.setattr(flash, "_interface", lambda: __import__("json"))  # what a trace couldn't follow
    torch._dynamo.reset()
    asked = torch.compile(lambda query: query + int(flash.takes(query)), fullgraph=True, backend="eager", dynamic=True)
    assert float(asked(torch.zeros(4, 2, 64, dtype=torch.bfloat16)).max()) == int(there)


def test_the_version_is_the_one_that_images_install():
    assert f"flash-attn-4=={flash.VERSION}" in Path("constraints.txt").read_text().splitlines()
