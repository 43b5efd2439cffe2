"""What a worker makes of its job: the client of the servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.observe.waits import WaitRegistry
from areal.rollout.worker.main import generation_client
from areal.workflow.tokenizer import Tokenizer
from support.cluster_jobs import CPU_RUNTIME, quickstart, wanted

DENSE = {"model_type": "qwen3", "num_hidden_layers": 2}
EXPERTS = {"model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "staleness", "ahead", "evens", "routes"),
    [
        (DENSE, 0, None, True, False),
        (DENSE, 4, 0, True, False),
        (DENSE, 4, None, False, False),
        (EXPERTS, 0, None, False, True),
        (None, 0, None, False, True),
    ],
)
async def test_requests_of_a_synchronous_job_move_unless_their_experts_are_recorded(
    config: dict[str, object] | None,
    staleness: int,
    ahead: int | None,
    evens: bool,
    routes: bool,
    tmp_path: Path,
    worker_tokenizer: Tokenizer,
) -> None:
    """Every job asked for routes, those of models without experts too, and no request ever moved."""
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    values = quickstart()
    values["spec"]["algorithm"]["maxStaleness"] = staleness
    values["spec"]["rollout"]["ahead"] = ahead
    job = wanted(values, CPU_RUNTIME).resolved.model_copy(update={"model_path": tmp_path})
    client = generation_client(job, "t" * 32, "w", worker_tokenizer, WaitRegistry("w"))
    try:
        assert (client._evens, client._routes) == (evens, routes)
    finally:
        await client.close()
