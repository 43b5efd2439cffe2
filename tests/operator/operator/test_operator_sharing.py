"""Equal blocks of parsed jobs are kept once, jobs stay what they are, and nothing outlives its jobs."""

from __future__ import annotations

import gc
from pathlib import Path
from weakref import WeakValueDictionary

import pytest
from areal.spec import load_job
from areal_operator.operator.sharing import Blocks, shared

ACCEPTED = sorted((Path(__file__).parents[2] / "spec/corpus/accepted").glob("*.yaml"))


@pytest.mark.parametrize("path", ACCEPTED, ids=lambda path: path.stem)
def test_a_job_of_shared_blocks_is_the_same_job(path: Path) -> None:
    blocks: Blocks = WeakValueDictionary()
    job = load_job(path)
    found = shared(shared(job, blocks), blocks)
    assert found == job
    assert found.model_dump_json(exclude_unset=True) == job.model_dump_json(exclude_unset=True)


def test_what_differs_is_a_jobs_own_and_goes_with_it() -> None:
    blocks: Blocks = WeakValueDictionary()
    path = Path(__file__).parents[3] / "examples/quickstart.yaml"
    first = shared(load_job(path), blocks)
    second = shared(load_job(path, ["seed=7", "algorithm.maxSteps=9"]), blocks)
    assert (first.spec.seed, second.spec.seed) == (0, 7)
    assert (first.spec.algorithm.max_steps, second.spec.algorithm.max_steps) == (160, 9)
    for name in ("rollout", "trainer", "generation", "evaluation", "checkpoint"):
        assert getattr(first.spec, name) is getattr(second.spec, name), name
    kept = len(blocks)
    del second
    gc.collect()
    assert len(blocks) == kept - 2, "its spec and its algorithm"
    del first
    gc.collect()
    assert not blocks
