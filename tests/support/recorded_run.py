"""A small recorded run: segments with samples, failures, evaluated rows, steps and tokens, as its roles write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from areal.record.segment import OUTCOMES, FrameKind, Header, pack
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record

ANSWER = 3  # first token of an answer


def made_sample(group: int, index: int, *, seed: int = 0, version: int = 0, letters: str = "") -> record.SampleRecord:
    """A sample whose tokens are letters: 3 of a prompt, then an answer."""
    random = np.random.default_rng((seed, group, index))
    text = letters or "".join(random.choice(list("abcdef"), ANSWER + int(random.integers(2, 9))))
    pieces = [letter.encode() for letter in text]
    mask = np.array([0] * ANSWER + [1] * (len(pieces) - ANSWER), "u1")
    sequence = common.TokenSequence(
        token_ids=np.array([ord(letter) for letter in text], "<i4").tobytes(),
        logprobs=np.where(mask, -random.random(len(pieces)), 0).astype("<f4").tobytes(),
        loss_mask=mask.tobytes(),
        spans=[common.Span(start=ANSWER, end=len(pieces), policy_id=f"{version}.f1", server_id="generation-0")],
        reward=float(random.integers(0, 3)) / 2,
        finish_reason="stop",
    )
    sample = common.Sample(
        key=common.SampleKey(group=group, index=index, attempt=1),
        sequences=[sequence],
        oldest_version=version,
        max_staleness=2,
        verdict=common.Verdict(score=sequence.reward, status="right" if sequence.reward else "wrong", method="exact"),
        worker_id="worker-0",
    )
    return record.SampleRecord(
        sample=sample,
        xxh3=xxhash.xxh3_64_intdigest(sample.SerializeToString(deterministic=True)),
        outcome="complete",
        reward=sequence.reward,
        newest_version=version,
        texts=[
            record.SequenceText(
                text=b"".join(pieces), token_ends=np.cumsum([len(piece) for piece in pieces], dtype="<u4").tobytes()
            )
        ],
        moments=[
            record.Moment(what="generate", turn=0, began=100.0, ended=101.5),
            record.Moment(what="score", turn=1, began=101.5, ended=101.75),
        ],
        made_at=102.0,
    )


def with_text(made: record.SampleRecord, question: str, answer: str) -> record.SampleRecord:
    """The same sample, which says this: its tokens are words, and nothing but its answer is sampled."""
    pieces = [[piece.encode() for piece in re.findall(r"\s*\S+|\s+$", text)] for text in (question, answer)]
    start, tokens = len(pieces[0]), [*pieces[0], *pieces[1]]
    (sequence,) = made.sample.sequences
    sequence.token_ids = np.arange(len(tokens), dtype="<i4").tobytes()
    sequence.logprobs = np.full(len(tokens), -0.5, "<f4").tobytes()
    sequence.loss_mask = np.array([0] * start + [1] * len(pieces[1]), "u1").tobytes()
    sequence.spans[0].start, sequence.spans[0].end = start, len(tokens)
    made.texts[0].text = b"".join(tokens)
    made.texts[0].token_ends = np.cumsum([len(piece) for piece in tokens], dtype="<u4").tobytes()
    return made


def sample_frame(made: record.SampleRecord) -> bytes:
    """As a worker writes it."""
    tokens = sum(len(sequence.token_ids) // 4 for sequence in made.sample.sequences)
    key, kind = made.sample.key, FrameKind.EVALUATION if made.evaluation_id else FrameKind.SAMPLE
    outcome = OUTCOMES.index(made.outcome)
    header = Header(kind, key.group, key.index, 0, made.reward, tokens, made.newest_version, outcome)
    return pack(header, made.SerializeToString())


@dataclass
class RecordedRun:
    """Writes a run's segments: `steps` batches of `batch` groups of `size` samples, by hand and not by the trainer."""

    root: Path
    batch: int = 3
    size: int = 2
    samples: dict[tuple[int, int], record.SampleRecord] = field(default_factory=dict)
    tokens: dict[tuple[int, int], Mapping[str, np.ndarray]] = field(default_factory=dict)

    @property
    def directories(self) -> list[Path]:
        return [self.root / "trajectories", self.root / "recording"]

    def append(self, directory: str, name: str, *frames: bytes) -> Path:
        """Append frames to a segment."""
        path = self.root / directory / f"{name}.rec"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(frames))
        return path

    def train(self, step: int, *, fence: int = 1, name: str = "trainer-1-000000") -> None:
        """Make the samples of a step and record both sides of it."""
        keys = [(g, i) for g in range(step * self.batch, (step + 1) * self.batch) for i in range(self.size)]
        for key in keys:
            if key not in self.samples:
                self.samples[key] = made_sample(*key, version=step)
                self.append("trajectories", "worker-0-1-000000", sample_frame(self.samples[key]))
        self.append("recording", name, *self._step(step, fence, keys))

    def _step(self, step: int, fence: int, keys: list[tuple[int, int]]) -> tuple[bytes, bytes]:
        made = [self.samples[key] for key in keys]
        lengths = np.array([len(one.sample.sequences[0].token_ids) // 4 for one in made])
        random = np.random.default_rng((fence, step))
        for key, length, one in zip(keys, lengths, made, strict=True):
            mask = np.frombuffer(one.sample.sequences[0].loss_mask, "u1")
            self.tokens[key] = {
                "logprobs": np.where(mask, -random.random(length), 0).astype("<f4"),
                "entropy": np.where(mask, random.random(length), 0).astype("<f2"),
                "advantages": np.where(mask, random.normal(size=length), 0).astype("<f4"),
                "flags": (mask * (1 + 2 * random.integers(0, 2, length))).astype("u1"),
            }
        groups = np.array([g for g, _ in keys], "<u8").tobytes()
        indices = np.array([i for _, i in keys], "<u4").tobytes()
        columns = {
            name: b"".join(self.tokens[key][name].tobytes() for key in keys)
            for name in ("logprobs", "entropy", "advantages", "flags")
        }
        tokens = record.TokenRecord(
            step=step,
            fence=fence,
            groups=groups,
            indices=indices,
            ordinals=np.zeros(len(keys), "<u4").tobytes(),
            lengths=lengths.astype("<u4").tobytes(),
            **columns,
        )
        rewards = np.array([one.reward for one in made])
        told = record.StepRecord(
            step=step,
            fence=fence,
            at=1_000.0 + step,
            seconds={"train": 1.0, "wait": 0.5},
            groups=groups,
            indices=indices,
            rewards=rewards.astype("<f8").tobytes(),
            advantages=(rewards - rewards.mean()).astype("<f8").tobytes(),
            tokens=lengths.astype("<u4").tobytes(),
            trained=(lengths - ANSWER).astype("<u4").tobytes(),
            ages=np.full(len(keys), step % 3, "<i4").tobytes(),
            mismatch=random.random(len(keys)).astype("<f4").tobytes(),
            worst=random.random(len(keys)).astype("<f4").tobytes(),
            beyond=np.zeros(len(keys), "<f4").tobytes(),
            xxh3=np.array([one.xxh3 for one in made], "<u8").tobytes(),
        )
        step_head = Header(
            FrameKind.STEP, step=step, reward=float(rewards.mean()), tokens=int(lengths.sum()), version=fence
        )
        token_head = Header(FrameKind.TOKENS, keys[0][0], fence, step, tokens=int(lengths.sum()), version=keys[-1][0])
        return pack(step_head, told.SerializeToString()), pack(token_head, tokens.SerializeToString())
