"""Pages about one step, group or sample. Pure: records in, values out.

A worker, where user code runs, wrote the samples; the trainer wrote which it trained. A sample is shown as trained only
when the checksum that the trainer recorded is its own.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from areal.errors import ArealError
from areal.v1 import record_pb2 as record
from areal.values.policy import version_of

from areal_view.index.record_index import RecordedGroup, RecordIndex, RecordPlace, SampleRow
from areal_view.index.sample_text import array_of, pieces_of, shortened, texts_of, visible
from areal_view.pages.reading import PAGE, SampleLine, line_of

BINS = 20
_LETTERS = 4_000  # of a text of a group's page; a sample's page has all


@dataclass(frozen=True)
class TrainedSample:
    """A sequence in a step, as the trainer saw it."""

    group: int
    index: int
    reward: float
    advantage: float
    tokens: int
    trained: int
    age: int
    mismatch: float
    worst: float
    beyond: float
    xxh3: int


@dataclass(frozen=True)
class Bin:
    """A column of the histogram: rewards in [low, high), the last one's in [low, high]."""

    low: float
    high: float
    count: int
    height: float  # 0 to 1


@dataclass(frozen=True)
class StepPage:
    """One trained step."""

    step: int
    fence: int
    seconds: Sequence[tuple[str, float, float]]  # phase, seconds, share
    groups: Sequence[RecordedGroup]
    bins: Sequence[Bin]
    samples: Sequence[TrainedSample]  # of the chosen bin, a page of them; else those that are worth a look
    lines: Sequence[SampleLine | None]  # what they say; None where it is not recorded
    pages: int


@dataclass(frozen=True)
class GroupSample:
    """A sample in its group."""

    row: SampleRow
    prompt: str
    same: str  # how the answer begins like all others of the group
    rest: str
    verdict: str
    trained: TrainedSample | None
    is_the_trained_one: bool
    fault: str


@dataclass(frozen=True)
class GroupPage:
    """A prompt group."""

    group: int
    trained: RecordedGroup | None
    expected: str
    answers: Sequence[GroupSample]


@dataclass(frozen=True)
class TokenRun:
    """Tokens of one origin: given, or sampled by one policy on one server."""

    text: str
    start: int
    end: int
    policy: str
    server: str


@dataclass(frozen=True)
class SequencePage:
    """One sequence of a sample."""

    parts: Sequence[TokenRun]
    reward: float
    finish_reason: str
    tokens: int
    trained: int


@dataclass(frozen=True)
class SamplePage:
    """One sample."""

    group: int
    index: int
    outcome: str
    reward: float
    worker: str
    attempt: int
    step: int | None
    trained: TrainedSample | None
    is_the_trained_one: bool
    evaluation: str
    sequences: Sequence[SequencePage]
    moments: Sequence[tuple[str, int, float, float]]  # what, turn, began after the first, seconds
    note: str
    expected: str
    verdict: Sequence[tuple[str, str]]
    fault: Sequence[tuple[str, str]]
    lineage: Sequence[tuple[str, str, int, int]]  # policy, server, tokens, step that made the policy


def trained_samples(told: record.StepRecord) -> list[TrainedSample]:
    """The rows of a StepRecord."""
    columns = [
        array_of(told.groups, "<u8"), array_of(told.indices, "<u4"), array_of(told.rewards, "<f8"),
        array_of(told.advantages, "<f8"), array_of(told.tokens, "<u4"), array_of(told.trained, "<u4"),
        array_of(told.ages, "<i4"), array_of(told.mismatch, "<f4"), array_of(told.worst, "<f4"),
        array_of(told.beyond, "<f4"), array_of(told.xxh3, "<u8"),
    ]  # fmt: skip
    return [TrainedSample(*row) for row in zip(*(column.tolist() for column in columns), strict=False)]


def step_page(
    index: RecordIndex, step: int, chosen: tuple[float, float] | None = None, number: int = 1
) -> StepPage | None:
    """A step; `chosen`: only samples with rewards from one to the other, both included, of them page `number`."""
    told = index.step(step)
    if told is None:
        return None
    samples = trained_samples(told)
    total = sum(told.seconds.values())
    phases = [(name, seconds, seconds / total if total else 0.0) for name, seconds in sorted(told.seconds.items())]
    if chosen is not None:
        listed = [sample for sample in samples if chosen[0] <= sample.reward <= chosen[1]]
    else:
        listed = _worth_a_look(samples)
    bins, pages = histogram([sample.reward for sample in samples]), -(-len(listed) // PAGE)
    listed = listed[(number - 1) * PAGE : number * PAGE]
    return StepPage(step, told.fence, phases, index.groups(step), bins, listed, _lines(index, listed), pages)


def _lines(index: RecordIndex, samples: Sequence[TrainedSample]) -> list[SampleLine | None]:
    """What the samples of a step say."""
    facts = {(sample.group, sample.index): sample for sample in samples}
    rows = [row for group in dict.fromkeys(sample.group for sample in samples) for row in index.samples(group)]
    newest = _newest(index, [row for row in rows if (row.group, row.index) in facts], facts)
    return [line_of(made, row) if row else None for row, made in (newest.get(key, (None, None)) for key in facts)]


def _worth_a_look(samples: Sequence[TrainedSample]) -> list[TrainedSample]:
    """The lowest and highest rewards and the largest mismatches."""
    by_reward = sorted(samples, key=lambda sample: sample.reward)
    by_mismatch = sorted(samples, key=lambda sample: -sample.worst)
    found = {(s.group, s.index): s for s in (*by_reward[:4], *by_reward[-4:], *by_mismatch[:4])}
    return list(found.values())


def histogram(values: Sequence[float]) -> list[Bin]:
    """Equal bins from the least to the greatest; one bin when all are equal."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    if low == high:
        return [Bin(low, high, len(finite), 1.0)]
    counts, edges = np.histogram(finite, bins=BINS, range=(low, high))
    most = max(1, int(counts.max()))
    edge = edges.tolist()
    return [Bin(edge[n], edge[n + 1], count, count / most) for n, count in enumerate(counts.tolist())]


def group_page(index: RecordIndex, group: int) -> GroupPage | None:
    """A group's samples side by side."""
    rows, trained = index.samples(group), index.group(group)
    if not rows and trained is None:
        return None
    facts = _trained_of(index, trained)
    newest = _newest(index, rows, facts)
    texts = {key: texts_of(made) for key, (_, made) in newest.items()}
    answers = [answer for _, answer in texts.values() if answer]
    same = _common(answers) if len(answers) > 1 else b""
    found = []
    for key, (row, made) in newest.items():
        prompt, answer = texts[key]
        fact = facts.get(key)
        begins = same if answer.startswith(same) else b""
        rest = answer[len(begins) :]
        verdict = " · ".join([*(text for _, text in _words(made)), *(f"{n} {value}" for n, value in _figures(made))])
        found.append(
            GroupSample(
                row, shortened(prompt, _LETTERS), shortened(begins, _LETTERS), shortened(rest, _LETTERS), verdict, fact,
                fact is not None and fact.xxh3 == made.xxh3, visible(made.fault.message),
            )
        )  # fmt: skip
    expected = next((made.expected for _, made in newest.values() if made.expected), "")
    return GroupPage(group, trained, visible(expected), found)


def sample_page(index: RecordIndex, group: int, number: int) -> SamplePage | None:
    """One sample: of several records the one that was trained, else the newest."""
    trained, (found, fact) = index.group(group), _recorded(index, group, number)
    if found is None:
        return None
    row, made = found
    is_trained = fact is not None and fact.xxh3 == made.xxh3
    return _page(row, made, trained if is_trained else None, fact, is_trained)


def evaluated_page(index: RecordIndex, place: RecordPlace) -> SamplePage | None:
    """A row of an evaluation."""
    made = index.sample(place)
    if made is None:
        return None
    key = made.sample.key
    row = SampleRow(key.group, key.index, made.reward, 0, made.newest_version, made.outcome, made.evaluation_id, place)
    return _page(row, made, None, None, False)


def _page(
    row: SampleRow, made: record.SampleRecord, group: RecordedGroup | None, fact: TrainedSample | None, is_trained: bool
) -> SamplePage:
    began = min((moment.began for moment in made.moments), default=made.made_at)
    policies: Counter[tuple[str, str]] = Counter()
    for sequence in made.sample.sequences:
        for span in sequence.spans:
            policies[span.policy_id, span.server_id] += span.end - span.start
    fault = made.fault
    return SamplePage(
        row.group, row.index, made.outcome, made.reward, visible(made.sample.worker_id), made.sample.key.attempt,
        group.step if group else None, fact, is_trained, row.evaluation,
        [_sequence(made, place) for place in range(len(made.sample.sequences))],
        [(m.what, m.turn, m.began - began, m.ended - m.began) for m in made.moments],
        visible(made.note), visible(made.expected), [*_words(made), *_figures(made)],
        [(name, visible(text)) for name, text in
         (("message", fault.message), ("fix", fault.fix), ("traceback", fault.traceback)) if text],
        [(name, visible(server), count, max(_version(name) - 1, -1)) for (name, server), count in policies.items()],
    )  # fmt: skip


def _sequence(made: record.SampleRecord, place: int) -> SequencePage:
    sequence = made.sample.sequences[place]
    pieces = pieces_of(made, place)
    mask = array_of(sequence.loss_mask, "u1")
    parts, at = [], 0
    for span in sorted(sequence.spans, key=lambda span: span.start):
        if span.start > at:
            parts.append(TokenRun(visible(b"".join(pieces[at : span.start])), at, span.start, "", ""))
        text = visible(b"".join(pieces[span.start : span.end]))
        parts.append(TokenRun(text, span.start, span.end, span.policy_id, visible(span.server_id)))
        at = span.end
    if at < len(pieces):
        parts.append(TokenRun(visible(b"".join(pieces[at:])), at, len(pieces), "", ""))
    return SequencePage(parts, sequence.reward, sequence.finish_reason, len(pieces), int(mask.sum()))


def tokens_of(index: RecordIndex, group: int, number: int) -> dict[int, dict[str, Any]]:
    """The trainer's columns of a sample's tokens: sequence → columns."""
    trained = index.group(group)
    told = index.step(trained.step) if trained else None
    if told is None:
        return {}
    found: dict[int, dict[str, Any]] = {}
    for chunk in index.tokens(told.step, told.fence, group):
        lengths = array_of(chunk.lengths, "<u4").astype(np.int64)
        ends = np.cumsum(lengths)
        groups, indices = array_of(chunk.groups, "<u8"), array_of(chunk.indices, "<u4")
        ordinals = array_of(chunk.ordinals, "<u4")
        for place in np.flatnonzero((groups == group) & (indices == number)):
            part = slice(int(ends[place] - lengths[place]), int(ends[place]))
            found[int(ordinals[place])] = {
                "trained": array_of(chunk.logprobs, "<f4")[part],
                "entropy": array_of(chunk.entropy, "<f2")[part],
                "advantage": array_of(chunk.advantages, "<f4")[part],
                "flags": array_of(chunk.flags, "u1")[part],
            }
    return found


def token_columns(index: RecordIndex, group: int, number: int, place: int) -> dict[str, Any] | None:
    """Everything known of each token of a sequence, as lists; None when there is no such sequence."""
    found, fact = _recorded(index, group, number)
    if found is None or place >= len(found[1].sample.sequences):
        return None
    made = found[1]
    sequence = made.sample.sequences[place]
    pieces = pieces_of(made, place)
    sampled = np.zeros(len(pieces), "<f4")
    told = array_of(sequence.logprobs, "<f4")[: len(pieces)]
    sampled[: len(told)] = told
    versions = np.full(len(pieces), -1)
    for span in sequence.spans:
        versions[span.start : span.end] = _version(span.policy_id)
    shown = {piece: visible(piece) for piece in set(pieces)}
    columns: dict[str, Any] = {
        "pieces": [shown[piece] for piece in pieces],
        "ids": array_of(sequence.token_ids, "<i4").tolist(),
        "mask": array_of(sequence.loss_mask, "u1").tolist(),
        "sampled": sampled.tolist(),
        "versions": versions.tolist(),
    }
    computed = tokens_of(index, group, number).get(place)
    if computed is not None and fact is not None and fact.xxh3 == made.xxh3 and len(computed["flags"]) == len(pieces):
        seen = computed["flags"] > 0
        with np.errstate(over="ignore"):
            ratio = np.exp(np.clip(computed["trained"] - sampled, -50, 50))
        for name in ("trained", "entropy", "advantage"):
            columns[name] = _where(seen, computed[name])
        columns["ratio"] = _where(seen, ratio)
        columns["flags"] = computed["flags"].tolist()
    return columns


def _version(policy: str) -> int:
    """The version of a policy; −1 of a name that is none."""
    try:
        return version_of(policy)
    except (ArealError, ValueError):
        return -1


def _where(seen: Any, values: Any) -> list[float | None]:
    """Values of the tokens that were trained; None elsewhere and where one isn't finite."""
    pairs = zip(seen.tolist(), values.astype(float).tolist(), strict=True)
    return [value if there and math.isfinite(value) else None for there, value in pairs]


def _trained_of(index: RecordIndex, group: RecordedGroup | None) -> dict[tuple[int, int], TrainedSample]:
    told = index.step(group.step) if group else None
    if told is None or group is None:
        return {}
    return {(one.group, one.index): one for one in trained_samples(told) if one.group == group.group}


def _recorded(
    index: RecordIndex, group: int, number: int
) -> tuple[tuple[SampleRow, record.SampleRecord] | None, TrainedSample | None]:
    """A sample of a group, and what the trainer saw of it."""
    facts = _trained_of(index, index.group(group))
    rows = [row for row in index.samples(group) if row.index == number]
    return _newest(index, rows, facts).get((group, number)), facts.get((group, number))


def _newest(
    index: RecordIndex, rows: Sequence[SampleRow], facts: dict[tuple[int, int], TrainedSample]
) -> dict[tuple[int, int], tuple[SampleRow, record.SampleRecord]]:
    """Of each sample the record that was trained, else the newest one."""
    found: dict[tuple[int, int], tuple[SampleRow, record.SampleRecord]] = {}
    for row in rows:
        made, key = index.sample(row.place), (row.group, row.index)
        if made is None:
            continue
        kept, fact = found.get(key), facts.get(key)
        if kept is None or fact is None or kept[1].xxh3 != fact.xxh3:
            found[key] = (row, made)
    return found


def _common(texts: Sequence[bytes]) -> bytes:
    first, last = min(texts), max(texts)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[:same]


def _words(made: record.SampleRecord) -> list[tuple[str, str]]:
    """Words of the verifier."""
    verdict = made.sample.verdict
    return [
        (name, visible(text)) for name in ("status", "method", "detail", "tier") if (text := getattr(verdict, name))
    ]


def _figures(made: record.SampleRecord) -> list[tuple[str, str]]:
    """The reward's parts and the workflow's figures, by name."""
    return [(name, f"{value:.4g}") for name, value in sorted(made.sample.verdict.figures.items())]
