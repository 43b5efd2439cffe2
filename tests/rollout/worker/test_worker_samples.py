"""From an episode to the ledger's bytes and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from areal.errors import BugError
from areal.ledger import payload
from areal.rollout.worker.recording import Origin, build, expected_of, versions_of
from areal.v1 import common_pb2 as common
from areal.workflow import Episode, GenerationResult, TokenSpan, Transcript
from hypothesis import given
from hypothesis import strategies as st

turns = st.lists(
    st.tuples(
        st.lists(st.integers(4, 15), min_size=1, max_size=5),
        st.lists(st.integers(4, 15), max_size=5),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=3,
)
ORIGIN = Origin(12, 3, 2, 4, "worker-0", common.Digests(recipe="r"), common.Verdict(score=1.0, status="right"))


def transcript(parts, reward=0.5):
    made = Transcript(parts[0][0])
    for given_ids, sampled, version in parts:
        made.given(given_ids)
        spans = (TokenSpan(0, len(sampled), f"{version}.f1", "s"),) if sampled else ()
        made.sampled(GenerationResult(np.array(sampled, "<i4"), np.full(len(sampled), -0.25, "<f4"), spans, "stop"))
    return made.sequence(reward)


@given(parts=st.lists(turns, min_size=1, max_size=3))
def test_a_stored_sample_is_the_episode(parts):
    episode = Episode([transcript(part) for part in parts])
    if not any(sequence.spans for sequence in episode.sequences):
        assert versions_of(episode) is None
        with pytest.raises(BugError, match="no sampled token"):
            build(episode, ORIGIN)
        return
    made = build(episode, ORIGIN)
    sample = payload.decode(made.payload)
    assert (sample.key.group, sample.key.index, sample.key.attempt) == (12, 3, 2)
    for stored, sequence in zip(sample.sequences, episode.sequences, strict=True):
        assert np.frombuffer(stored.token_ids, "<i4").tolist() == sequence.input_ids.tolist()
        assert np.frombuffer(stored.logprobs, "<f4").tolist() == sequence.logprobs.tolist()
        assert np.frombuffer(stored.loss_mask, "u1").tolist() == sequence.loss_mask.tolist()
        assert [(s.start, s.end, s.policy_id, s.server_id) for s in stored.spans] == [
            (s.start, s.end, s.policy_id, s.server_id) for s in sequence.spans
        ]
    versions = [v for sequence in episode.sequences for v in sequence.versions.tolist() if v >= 0]
    assert (made.meta.oldest_version, made.meta.newest_version) == versions_of(episode)
    assert versions_of(episode) == (min(versions), max(versions))
    assert (sample.oldest_version, made.meta.max_staleness) == (made.meta.oldest_version, 4)
    assert made.meta.tokens == sum(len(s.input_ids) for s in episode.sequences)
    assert made.meta.xxh3 == payload.digest(made.payload)
    assert sample.verdict.status == "right"


PARTS = [([1, 2], [7, 8], 3)]


def test_figures_of_the_episode_stand_beside_the_parts_of_the_reward():
    origin = replace(ORIGIN, verdict=common.Verdict(score=1.0, status="right", figures={"format": 0.5, "turns": 9}))
    stored = payload.decode(build(Episode([transcript(PARTS)], figures={"turns": 3}), origin).payload)
    assert dict(stored.verdict.figures) == {"format": 0.5, "turns": 3.0}
    assert (stored.verdict.status, origin.verdict.figures["turns"]) == ("right", 9.0)
    alone = payload.decode(
        build(Episode([transcript(PARTS)], figures={"turns": 3}), replace(ORIGIN, verdict=None)).payload
    )
    assert (dict(alone.verdict.figures), alone.verdict.score) == ({"turns": 3.0}, 0.5)


@pytest.mark.parametrize(
    ("row", "field", "expected"),
    [
        (b'{"answer": "Natalia sold 72.\\n#### 72"}', "answer", "Natalia sold 72.\n#### 72"),
        (b'{"answer": 18.0}', "answer", "18"),
        (b'{"reward_model": {"ground_truth": "72", "style": "rule"}}', "reward_model.ground_truth", "72"),
        (b'{"answer": ["a", 1]}', "answer", '["a",1]'),
        (b'{"answer": null}', "answer", ""),
        (b'{"tests": []}', "answer", ""),
        (b"", "answer", ""),
    ],
)
def test_the_expected_answer_is_the_row_s(row, field, expected):
    assert expected_of(row, field) == expected
