"""The embedded engine's cache budget: told, the same whatever memory is free, and one whole context at least."""

from __future__ import annotations

import pytest
import torch
from areal.engine.cache import KVCache
from areal.engine.embedded import EngineOptions, TorchEngine
from areal.engine.main import options, parser
from areal.generation.engine_command import EngineStart, launch
from areal.spec import serving
from support.engine_models import make_model


@pytest.mark.parametrize(("cache_bytes", "tokens"), [(2 << 30, 1 << 20), (8 << 20, None), (1, None)])
def test_the_budget_is_what_the_command_line_says_whatever_is_free(tmp_path, monkeypatch, cache_bytes, tokens):
    monkeypatch.setattr("psutil.virtual_memory", lambda: pytest.fail("free memory depends on what else runs"))
    model = make_model(tmp_path / "model", 0)
    engine = TorchEngine(EngineOptions(model_path=model, cache_bytes=cache_bytes), lambda error: None)
    a_token = KVCache.bytes_per_token(engine.config, torch.float32)
    expected = tokens or max(cache_bytes // a_token, KVCache.capacity_for(engine.context))
    assert engine.max_total_tokens == expected


def test_the_jobs_field_reaches_the_engine(tmp_path):
    start = EngineStart(tmp_path, tmp_path, "1.f1", 4000, 16, "key")
    given = serving.EmbeddedEngineBlock(cache_memory=3 << 20)
    for engine, expected in ((given, 3 << 20), (serving.EmbeddedEngineBlock(), 2 << 30)):
        argv = launch(engine, start).argv
        assert options(parser().parse_args(argv[3:])).cache_bytes == expected
