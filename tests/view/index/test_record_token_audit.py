"""The audit of tokens on files, as servers, trainer and controller write them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pytest
from areal.cli.main import app, guarded
from areal.errors import ConfigError, ExitCode
from areal.generation.journal import SampleJournal
from areal.ledger.evidence import EvidenceLog, TrainedGroup
from areal.observe.metrics import RoleMetrics
from areal.record.writer import RecordWriter
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal_trainer.batch_journal import BatchJournal
from areal_trainer.data.batch import TokenBatch
from areal_view.index.oracle import FaultOf, UntrainedReason
from areal_view.index.token_audit import audit_tokens
from support.trainer_parts import batch

STEPS, GROUPS, SIZE = 2, 2, 2


def of_step(step: int) -> TokenBatch:
    """A batch whose groups follow those of the step before."""
    made = batch(GROUPS, SIZE, version=step)
    return TokenBatch(**{**made.arrays(), "group_ids": made.group_ids + step * GROUPS})


class Run:
    """Writes what a run of two steps leaves, as it was trained or with something planted."""

    def __init__(self, root):
        self.root = root
        (root / "resolved.json").write_text("{}")
        self.metrics = RoleMetrics("trainer", "job")
        self.journal = SampleJournal(self.writer("generation-0"), "generation-0")
        self.batches = BatchJournal(self.writer("trainer"), 1, 1.0)
        self.evidence = EvidenceLog(root / "evidence", 1)
        self.evidence.start(0, GROUPS, SIZE)

    def writer(self, name):
        return RecordWriter(self.root / "tokens", name, self.metrics, keep_bytes=1 << 30)

    def sample(self, tokens: TokenBatch):
        """Journal each sequence's sampled tokens as one request, told in two deltas."""
        for place in range(tokens.sequences):
            part = slice(int(tokens.offsets[place]), int(tokens.offsets[place + 1]))
            ids, logprobs = tokens.token_ids[part], tokens.behaviour_logprobs[part]
            first = int(np.argmax(tokens.loss_mask[part]))
            key = common.SampleKey(group=tokens.group_ids[place], index=tokens.sample_indices[place], attempt=1)
            routes = tokens.routes[part] if len(tokens.routes) else None
            self.request(key, ids[:first], ids[first:], logprobs[first:], int(tokens.versions[part][first]), routes)

    def request(self, key, fed, ids, logprobs, version, routes=None):
        deltas = []
        for part in (slice(0, 1), slice(1, len(ids))):
            told = b"" if routes is None else routes[part.start and len(fed) : len(fed) + part.stop - 1].tobytes()
            count = len(ids[part])
            deltas.append(
                wire.GenerateDelta(
                    token_ids=ids[part].astype("<i4").tobytes(),
                    logprobs=logprobs[part].astype("<f4").tobytes(),
                    spans=[common.Span(start=0, end=count, policy_id=f"{version}.f1", server_id="generation-0")],
                    routes=told,
                    route_bytes=0 if routes is None else routes.shape[1],
                )
            )
        self.journal.ended(f"w.{ids[0]}", key, fed.tolist(), deltas, 1.0, wire.END_REASON_STOP)

    def train(self, step, tokens: TokenBatch, *, dumped=True):
        pairs: dict[int, list[tuple[int, int]]] = {}
        for group, index in zip(tokens.group_ids.tolist(), tokens.sample_indices.tolist(), strict=True):
            pairs.setdefault(group, []).append((index, 0))
        self.evidence.trained(step, [TrainedGroup(group, tuple(samples)) for group, samples in pairs.items()])
        if dumped:
            self.batches.step(step, tokens)

    def end(self, *, closed=True):
        self.evidence.close()
        self.batches.close()
        if closed:
            self.journal.close()
        else:
            self.journal._writer.close()
        return audit_tokens(self.root)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_a_run_whose_tokens_are_what_was_sampled_is_clean(run, capsys):
    for step in range(STEPS):
        run.sample(of_step(step))
        run.train(step, of_step(step))
    spare = of_step(STEPS)
    run.sample(spare)  # in flight at the end
    ids = np.array([3, 4, 5])
    run.request(None, ids, ids, np.zeros(3), 0)  # of an evaluation
    report = run.end()
    assert report.ok
    assert not report.gaps
    assert report.trained == report.equal == sum(int(of_step(step).trainable().sum()) for step in range(STEPS))
    assert report.untrained == {UntrainedReason.IN_FLIGHT: int(spare.loss_mask.sum()), UntrainedReason.EVALUATION: 3}
    assert report.sampled == report.equal + sum(report.untrained.values())
    assert guarded(lambda: app(["audit", str(run.root), "--tokens"])) == ExitCode.DONE
    assert "every trained token is the one that was sampled" in capsys.readouterr().out


@pytest.mark.parametrize("planted", [False, True])
def test_a_token_that_was_trained_with_other_experts_is_named(run, planted):
    tokens = of_step(0)
    routes = np.random.default_rng(1).integers(0, 9, (tokens.tokens, 6)).astype(np.uint8)
    tokens = replace(tokens, routes=routes)
    run.sample(tokens)
    wrong = routes.copy()
    wrong[np.flatnonzero(tokens.trainable())[3] - 1, 2] += planted
    run.train(0, replace(tokens, routes=wrong))
    report = run.end()
    assert report.faults == ({FaultOf.ROUTES: 1} if planted else {})
    assert report.equal == int(tokens.trainable().sum()) - planted


def test_a_planted_log_probability_fails_the_command(run, capsys):
    tokens = of_step(0)
    run.sample(tokens)
    wrong = tokens.behaviour_logprobs.copy()
    wrong[np.flatnonzero(tokens.loss_mask)[3]] += 0.01
    run.train(0, TokenBatch(**{**tokens.arrays(), "behaviour_logprobs": wrong}))
    assert run.end().faults == {FaultOf.LOGPROB: 1}
    assert guarded(lambda: app(["audit", str(run.root), "--tokens", "--json"])) == ExitCode.BUG
    said = orjson.loads(capsys.readouterr().out)
    assert said["faults"] == {"another log-probability": 1}
    assert said["ok"] is False


def test_a_sample_in_two_steps_is_trained_twice(run):
    tokens = of_step(0)
    run.sample(tokens)
    run.train(0, tokens)
    run.train(1, tokens)
    assert run.end().faults == {FaultOf.TWICE: int(tokens.trainable().sum())}


def test_a_batch_that_another_trainer_went_back_behind_does_not_count(run):
    tokens = of_step(0)
    run.sample(tokens)
    run.train(0, tokens)
    later = EvidenceLog(run.root / "evidence", 2)
    later.start(0, GROUPS, SIZE)
    later.trained(0, [TrainedGroup(group, ((0, 0), (1, 0))) for group in range(GROUPS)])
    later.close()
    again = BatchJournal(run.writer("trainer"), 2, 1.0)
    again.step(0, tokens)
    again.close()
    report = run.end()
    assert report.ok
    assert report.trained == int(tokens.trainable().sum())


def test_a_batch_that_was_not_journaled_is_missed(run):
    for step in range(STEPS):
        run.sample(of_step(step))
        run.train(step, of_step(step), dumped=step == 0)
    assert run.end().faults == {FaultOf.UNTOLD: GROUPS * SIZE}


def test_a_server_that_died_leaves_a_gap_and_no_fault(run):
    first, second = of_step(0), of_step(1)
    run.sample(first)
    run.train(0, first)
    run.train(1, second)  # sampled by a server whose journal was lost with it
    report = run.end(closed=False)
    assert report.ok
    assert report.unwitnessed == int(second.trainable().sum())
    assert "its process died" in report.gaps[0]


def test_a_run_without_journals_says_how_to_make_one(tmp_path, capsys):
    with pytest.raises(ConfigError, match="no journal of tokens"):
        audit_tokens(tmp_path)
    assert guarded(lambda: app(["audit", str(tmp_path), "--tokens"])) == ExitCode.CONFIG
    assert "is no run directory" in capsys.readouterr().err
