"""What a worker takes of a job's sampling, for training and for evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from areal.rollout.worker.main import _settings
from areal.spec import load_job
from areal.values.generation import Sampling

CORPUS = Path(__file__).resolve().parents[2] / "spec" / "corpus" / "accepted"


def test_what_ends_an_answer_reaches_episodes_and_evaluations() -> None:
    settings = _settings(
        SimpleNamespace(
            spec=load_job(CORPUS / "stops-of-its-own.yaml", ["evaluation.temperature=0.5"]).spec, verifier=None
        )
    )
    ends = {"min_new_tokens": 2, "stop": ("</answer>",), "stop_token_ids": (7,)}
    assert settings.sampling == Sampling(1.0, 12, **ends)
    assert settings.evaluation_sampling == replace(settings.sampling, temperature=0.5)
