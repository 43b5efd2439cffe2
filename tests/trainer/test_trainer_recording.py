"""What the trainer records of a step: the arrays it trained with, cut by sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from areal.ledger import payload
from areal.observe.metrics import RoleMetrics
from areal.record.writer import RecordWriter
from areal_trainer.algorithms.advantages import AdvantageOptions, estimate_advantages
from areal_trainer.recording import StepRecorder, TrainedStep, TrainedTokens, chosen, chunks
from areal_view.index.record_index import RecordIndex
from support.trainer_parts import batch, sample

STEP, FENCE = 4, 7
SAMPLES = {(g, i): sample(g, i, version=3) for g in range(6) for i in range(4)}
STORED = {key: payload.encode(made) for key, made in SAMPLES.items()}


@pytest.fixture
def trained():
    tokens = batch(6, 4, version=3)
    random = np.random.default_rng(0)
    mask = tokens.trainable()
    logprobs = np.where(mask, tokens.behaviour_logprobs + random.normal(0, 0.6, tokens.tokens), 0).astype(np.float32)
    computed = TrainedTokens(logprobs, np.where(mask, 1.5, 0).astype(np.float32), mask.astype(np.uint8))
    digests = {group: [(index, group * 100 + index) for index in range(4)] for group in range(6)}
    return tokens, estimate_advantages(tokens, AdvantageOptions()), computed, digests


def recorded(tmp_path, trained, **limits):
    tokens, advantages, computed, digests = trained
    writer = RecordWriter(tmp_path / "recording", "trainer", RoleMetrics("trainer", "job"), keep_bytes=1 << 30)
    bounds = {"share": 1.0, "budget_bytes": 1 << 20, "worker_budget_bytes": 1 << 20, **limits}
    recorder = StepRecorder(writer, pieces=lambda: lambda token: b"%d " % token, **bounds)
    recorder.step(TrainedStep(STEP, FENCE, tokens, advantages, computed, digests, STORED, {"train": 2.0}))
    writer.close()
    return RecordIndex(tmp_path / "index.sqlite", [tmp_path / "recording"]).refresh()


def test_a_step_has_the_figures_of_every_sequence(tmp_path, trained):
    tokens, advantages, computed, _ = trained
    told = recorded(tmp_path, trained).step(STEP)
    assert (told.step, told.fence, told.seconds["train"]) == (STEP, FENCE, 2.0)
    assert np.frombuffer(told.groups, "<u8").tolist() == tokens.group_ids.tolist()
    assert np.frombuffer(told.rewards, "<f8").tolist() == tokens.rewards.tolist()
    assert np.frombuffer(told.advantages, "<f8").tolist() == advantages.values.tolist()
    assert np.frombuffer(told.xxh3, "<u8").tolist() == [g * 100 + i for g in range(6) for i in range(4)]
    assert set(np.frombuffer(told.ages, "<i4").tolist()) == {1}
    mean, worst, beyond = (np.frombuffer(getattr(told, name), "<f4") for name in ("mismatch", "worst", "beyond"))
    for place in range(tokens.sequences):
        part = slice(tokens.offsets[place], tokens.offsets[place + 1])
        mask = tokens.trainable()[part]
        gap = np.abs(computed.logprobs[part] - tokens.behaviour_logprobs[part])[mask]
        assert mean[place] == pytest.approx(gap.mean() if len(gap) else 0.0, rel=1e-5)
        assert worst[place] == pytest.approx(gap.max(initial=0), rel=1e-5)
        assert beyond[place] == pytest.approx((gap > math.log(2)).mean() if len(gap) else 0.0, rel=1e-5)


def test_the_tokens_of_a_sequence_are_those_that_were_trained(tmp_path, trained):
    tokens, advantages, computed, _ = trained
    index = recorded(tmp_path, trained)
    for group in range(6):
        (told,) = index.tokens(STEP, FENCE, group)
        assert np.frombuffer(told.logprobs, "<f4").tolist() == computed.logprobs.tolist()
        assert np.frombuffer(told.advantages, "<f4").tolist() == advantages.tokens.astype(np.float32).tolist()
        assert np.frombuffer(told.flags, "u1").tolist() == computed.flags.tolist()
        assert np.frombuffer(told.lengths, "<u4").tolist() == tokens.lengths.tolist()
        assert set(np.frombuffer(told.ordinals, "<u4").tolist()) == {0}


def test_tokens_stay_within_share_and_budget_and_the_step_is_always_whole(tmp_path, trained):
    tokens = trained[0]
    assert len(chosen(tokens, 1.0, 1 << 20)) == tokens.sequences
    assert len(chosen(tokens, 0.0, 1 << 20)) == 0
    few = chosen(tokens, 1.0, 11 * int(tokens.lengths[:5].sum()))
    assert few.tolist() == [0, 1, 2, 3, 4]
    index = recorded(tmp_path, trained, share=0.0)
    assert len(np.frombuffer(index.step(STEP).groups, "<u8")) == tokens.sequences


def extremes(trained) -> set[tuple[int, int]]:
    """Lowest and highest reward, and where the largest mismatch is, found one by one."""
    tokens, _, computed, _ = trained
    gap = np.where(computed.flags > 0, np.abs(computed.logprobs - tokens.behaviour_logprobs), 0)
    worst = int(tokens.sequence_of[int(gap.argmax())])
    places = {int(tokens.rewards.argmin()), int(tokens.rewards.argmax()), worst}
    return {(int(tokens.group_ids[place]), int(tokens.sample_indices[place])) for place in places}


@pytest.mark.parametrize("limits", [{"share": 1e-9}, {"budget_bytes": 0, "worker_budget_bytes": 0}], ids=str)
def test_the_extremes_of_a_step_are_kept_whatever_share_and_budget_are(tmp_path, trained, limits):
    index = recorded(tmp_path, trained, **limits)
    rows = index.find()
    assert {(row.group, row.index) for row in rows} == extremes(trained)
    for row in rows:
        made, known = index.sample(row.place), SAMPLES[row.group, row.index]
        ids = np.frombuffer(known.sequences[0].token_ids, "<i4").tolist()
        assert made.sample == known
        assert made.xxh3 == payload.digest(STORED[row.group, row.index])
        assert made.texts[0].text == b"".join(b"%d " % token for token in ids)
        (told,) = index.tokens(STEP, FENCE, row.group)
        keys = zip(np.frombuffer(told.groups, "<u8").tolist(), np.frombuffer(told.indices, "<u4").tolist(), strict=True)
        assert set(keys) == extremes(trained)


def test_what_the_workers_keep_is_not_written_twice(tmp_path, trained):
    assert recorded(tmp_path, trained).find() == []


def test_long_batches_are_cut_into_chunks(trained, monkeypatch):
    tokens = trained[0]
    monkeypatch.setattr("areal_trainer.recording.CHUNK_TOKENS", 40)
    parts = chunks(tokens, np.arange(tokens.sequences))
    assert np.concatenate(parts).tolist() == list(range(tokens.sequences))
    assert len(parts) > 2
    assert all(tokens.lengths[part].sum() <= 40 + 16 for part in parts)
