"""From an episode to the ledger's bytes and back, and to lines for people."""

from __future__ import annotations

import json

import numpy as np
import pytest
from areal.errors import BugError
from areal.ledger import payload
from areal.rollout.worker.samples import Origin, build, versions_of
from areal.rollout.worker.trajectories import TrajectoryLog
from areal.v1 import common_pb2 as common
from areal.workflow import Episode, GenerationResult, TokenSpan, Transcript
from areal.workflow.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support.char_tokenizer import write_tokenizer

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


@pytest.fixture
def tokenizer(tmp_path):
    return Tokenizer.from_dir(write_tokenizer(tmp_path / "tokenizer"))


def test_the_first_sample_of_a_group_is_one_line(tokenizer, tmp_path):
    path = tmp_path / "trajectories" / "worker-0.jsonl"
    log = TrajectoryLog(path, tokenizer)
    prompt, answer = tokenizer.encode("21=").tolist(), [*tokenizer.encode("12").tolist(), 1]
    spans = (TokenSpan(0, 1, "3.f1", "s"), TokenSpan(1, 3, "4.f1", "s"))
    made = Transcript(prompt).sampled(GenerationResult(np.array(answer, "<i4"), np.zeros(3, "<f4"), spans))
    episode = Episode([made.sequence(1.0)])
    log.add(7, 0, episode)
    log.add(7, 1, episode)
    log.add(8, 0, episode, common.Verdict(score=1.0, status="PASSED", method="code", tier="T3"))
    log.flush()
    line, graded = path.read_text().splitlines()
    assert json.loads(graded)["verdict"] == {"status": "PASSED", "method": "code", "tier": "T3"}
    assert json.loads(line) == {
        "g": 7,
        "i": 0,
        "prompt": "21=",
        "completion": "12[EOS]",
        "reward": 1.0,
        "versions": [3, 4],
        "truncated": False,
    }


def test_trajectories_are_bounded(tokenizer, tmp_path):
    path = tmp_path / "worker-0.jsonl"
    log = TrajectoryLog(path, tokenizer, max_bytes=2_000)
    episode = Episode([transcript([([4, 5], [6], 0)])])
    for group in range(200):
        log.add(group, 0, episode)
        log.flush()
    files = sorted(file.name for file in tmp_path.glob("*.jsonl*"))
    assert "worker-0.jsonl.1" in files
    assert sum((tmp_path / name).stat().st_size for name in files) < 2 * 2_400
