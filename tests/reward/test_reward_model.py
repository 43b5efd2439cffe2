"""`model`: a reward model's scores are transformers' own, and what keeps it from scoring is no score."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.reward.scorer_pool.pool import DeadlineHit, ScorerAnswer, ScorerCrash, ScorerUnavailable
from areal.reward.verifiers.model import ModelVerifier, results_of
from areal.spec.serving import ModelReward
from areal.v1 import common_pb2 as common

pytest.importorskip("torch")

import torch
from areal_trainer.init_model import EOS, make_tokenizer
from transformers import AutoModelForSequenceClassification, Qwen3Config, Qwen3ForSequenceClassification

pytestmark = pytest.mark.component

ANSWERS = ["1234", "", "4", "1" * 30, "12", "no", "4321"] * 4  # more than one batch


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with one label, whose padding token also ends answers."""
    path = tmp_path_factory.mktemp("scorer")
    tokenizer = make_tokenizer()
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=1, head_dim=16, num_labels=1, pad_token_id=EOS, **shape
    )
    torch.manual_seed(0)
    Qwen3ForSequenceClassification(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


async def test_scores_are_those_of_transformers_and_faults_are_not_scores(scorer: Path, item) -> None:
    verifier = ModelVerifier(scorer, ModelReward(path="scorer", max_tokens=20), deadline_s=30.0)
    await verifier.start()
    try:
        items = [item(answer, "model", prompt="3142=") for answer in ANSWERS]
        results = await verifier.score([*items, item("1", "model", text="3142=")])
    finally:
        await verifier.stop()
    alone = AutoModelForSequenceClassification.from_pretrained(scorer)
    alone.config.pad_token_id = None
    tokenizer = make_tokenizer()
    with torch.no_grad():
        for answer, result in zip(ANSWERS, results[:-1], strict=True):
            ids = [*tokenizer.encode("3142=" + answer), EOS][:20]
            assert result.score == pytest.approx(float(alone(torch.tensor([ids])).logits), abs=1e-5)
    assert len({round(result.score, 6) for result in results[:-1]}) == len(set(ANSWERS))
    assert results[-1].fault.kind == common.FAULT_KIND_DATA
    assert "no prompt" in results[-1].fault.message


@pytest.mark.parametrize(
    ("outcome", "kind", "words"),
    [
        (DeadlineHit(2.0), common.FAULT_KIND_INFRA, "2 answers in no 2 s and was killed"),
        (ScorerCrash("signal SIGKILL", killed=True), common.FAULT_KIND_INFRA, "out of memory?"),
        (ScorerUnavailable("no process"), common.FAULT_KIND_INFRA, "no process"),
        (ScorerAnswer([["infra", "scored nan", ""]] * 2, 0.1), common.FAULT_KIND_INFRA, "scored nan"),
        (ScorerAnswer([["score", 1.0]], 0.1), common.FAULT_KIND_BUG, "a scorer answered"),
    ],
)
def test_what_could_not_be_scored_is_a_fault_of_every_answer(outcome, kind, words) -> None:
    results = results_of(outcome, 2)
    assert [(result.WhichOneof("outcome"), result.fault.kind) for result in results] == [("fault", kind)] * 2
    assert all(words in result.fault.message for result in results)
