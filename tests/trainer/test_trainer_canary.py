"""The canary: what it is made of, and which planted faults it finds in a real model in bfloat16."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.weights import build_weights, read_tensors
from areal.errors import DataError
from areal.weights.manifest import Canary, Difference, difference, problem
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.publish import canary as canary_module
from areal_trainer.publish.canary import MEAN_BFLOAT16, PASSAGE, SPREADS, canary, prepare
from safetensors.torch import load_file, save_file
from torch import Tensor

pytestmark = pytest.mark.timeout(600)  # a real model on two busy cores

Tensors = dict[str, Tensor]


def test_it_is_random_tokens_and_the_likeliest_after_them_where_there_is_no_tokenizer(model_path, ranks):
    from transformers import AutoModelForCausalLM

    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    probe = prepare(engine, model_path)
    made = canary(engine, probe)
    assert (made.tolerance, made.mean_tolerance) == (1e-3, None)
    assert len(made.token_ids) == 32 + 64
    ids = torch.from_numpy(probe.token_ids)[None]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(model_path)(ids).logits[0, :-1]
    assert logits.argmax(-1)[31:].tolist() == list(made.token_ids[32:])
    expected = logits.log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    np.testing.assert_allclose(made.logprobs[1:], expected.numpy(), atol=1e-5)
    assert np.array_equal(prepare(engine, model_path).token_ids, probe.token_ids)


@pytest.mark.parametrize(("context", "tokens"), [(40, 32), (20, 12), (None, 96)])
def test_it_leaves_room_in_the_context_of_servers(model_path, ranks, context, tokens):
    engine = PolicyEngine(model_path, ModelOptions(), ranks)
    assert len(prepare(engine, model_path, context=context).token_ids) == tokens


@pytest.mark.parametrize("half", ["trainer", "servers"])
def test_in_bfloat16_the_mean_is_bounded_by_what_rounding_does(model_path, ranks, half):
    options = ModelOptions(precision="bfloat16" if half == "trainer" else "float32")
    engine = PolicyEngine(model_path, options, ranks)
    probe = prepare(engine, model_path, served_in_bfloat16=half == "servers")
    assert probe.spread is not None
    assert probe.spread > 0
    made = canary(engine, probe)
    assert made.mean_tolerance == max(MEAN_BFLOAT16, SPREADS * probe.spread)
    assert made.tolerance == 1.0


@pytest.mark.parametrize("half", ["trainer", "servers"])
def test_the_second_engine_is_gone_when_the_spread_is_known(model_path, ranks, half, monkeypatch):
    made = []

    class Watched(PolicyEngine):
        def __init__(self, *given):
            super().__init__(*given)
            made.extend(weakref.ref(p) for p in (self, self._model, *self._parameters.values()))

    engine = PolicyEngine(model_path, ModelOptions(precision="bfloat16" if half == "trainer" else "float32"), ranks)
    monkeypatch.setattr(canary_module, "PolicyEngine", Watched)
    gc.disable()  # nobody else collects it
    try:
        prepare(engine, model_path, served_in_bfloat16=True)
        assert len(made) > 10
        assert [one for one in made if one() is not None] == []
    finally:
        gc.enable()


class Served:
    """The real model's weights as an embedded engine in bfloat16 scores them, with a fault or without."""

    def __init__(self, model: Path, room: Path, ranks: RankGroup) -> None:
        engine = PolicyEngine(model, ModelOptions(precision="bfloat16"), ranks)
        self.probe = prepare(engine, model)
        self.canary: Canary = canary(engine, self.probe)
        self.tensors: Tensors = load_file(model / "model.safetensors")
        self._room = room
        self._config = ModelConfig.from_dir(model)

    def difference(self, tensors: Tensors) -> Difference:
        """What a server of these tensors would be told. Raises DataError when they don't load."""
        save_file(tensors, self._room / "model.safetensors")
        weights = build_weights(self._room, read_tensors(self._room), self._config, torch.bfloat16)
        ids = torch.tensor([self.canary.token_ids])
        model = DecoderModel(self._config, torch.bfloat16, ids.shape[1])
        with torch.no_grad():
            hidden = model.prefill(weights, None, ids, None, hidden=True)
            assert hidden is not None
            logits = model.logits(weights, hidden[0, :-1])
        scored = logits.log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
        return difference(scored.tolist(), self.canary.logprobs[1:])


@pytest.fixture(scope="module")
def served(smollm2: Path, tmp_path_factory: pytest.TempPathFactory, ranks: RankGroup) -> Served:
    return Served(smollm2, tmp_path_factory.mktemp("served"), ranks)


def _named(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{part}.weight"


def _zeroed(tensors: Tensors) -> Tensors:
    name = _named(15, "mlp.down_proj")
    return {**tensors, name: torch.zeros_like(tensors[name])}


def _last_zeroed(tensors: Tensors) -> Tensors:
    """The smallest fault of those: the last block's queries."""
    name = _named(29, "self_attn.q_proj")
    return {**tensors, name: torch.zeros_like(tensors[name])}


def _transposed(tensors: Tensors) -> Tensors:
    name = _named(15, "self_attn.o_proj")
    return {**tensors, name: tensors[name].T.contiguous()}


def _swapped(tensors: Tensors) -> Tensors:
    left, right = "model.layers.14.", "model.layers.15."
    other = {name.replace(left, right): value for name, value in tensors.items() if name.startswith(left)}
    back = {name.replace(right, left): value for name, value in tensors.items() if name.startswith(right)}
    return {**tensors, **other, **back}


def _uninitialised(tensors: Tensors) -> Tensors:
    """Memory that nobody wrote: any bits, so some are no numbers."""
    name = _named(20, "mlp.up_proj")
    bits = np.random.default_rng(0).integers(0, 1 << 16, tensors[name].shape, dtype=np.uint16)
    return {**tensors, name: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)}


def _half_loaded(tensors: Tensors) -> Tensors:
    """The second half of the blocks holds another model's weights."""
    generator = torch.Generator().manual_seed(0)
    late = [name for name in tensors if any(name.startswith(f"model.layers.{layer}.") for layer in range(15, 30))]
    return {
        **tensors,
        **{name: tensors[name][torch.randperm(len(tensors[name]), generator=generator)] for name in late},
    }


@pytest.mark.component
def test_a_real_model_in_bfloat16_passes_and_is_scored_on_its_own_words(served, smollm2, capsys):
    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).decode(list(served.canary.token_ids))
    assert words.startswith(PASSAGE[:100])
    assert len(served.canary.token_ids) == 64 + 64
    assert np.mean(served.canary.logprobs[1:]) > -4  # a random token has −15
    found = served.difference(served.tensors)
    with capsys.disabled():
        bound, spread = served.canary.mean_tolerance, served.probe.spread
        print(f"\ncanary of 135M in bfloat16: spread {spread:.4f}, bound {bound:.4f}, clean mean {found.mean:.4f}")
    assert problem(served.canary, found) is None


@pytest.mark.component
@pytest.mark.parametrize("fault", [_zeroed, _last_zeroed, _transposed, _swapped, _uninitialised, _half_loaded])
def test_a_real_model_in_bfloat16_with_a_fault_is_refused(served, fault: Callable[[Tensors], Tensors]):
    assert problem(served.canary, served.difference(fault(served.tensors))) is not None


@pytest.mark.component
def test_a_tensor_that_is_missing_is_named(served):
    name = _named(7, "self_attn.v_proj")
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        served.difference({other: value for other, value in served.tensors.items() if other != name})
