"""Lists of samples to read: question, answer, expected answer, reward and its parts; and what moved in the parts.

Pure but for the recording that it reads. A list is a query in the address: filters and order are plain parameters, the
next page begins after a place.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import isnan, nan

from areal.record.segment import OUTCOMES
from areal.v1 import record_pb2 as record

from areal_view.index.record_index import IndexProgress, SampleRow
from areal_view.index.sample_query import FIGURE, NEWEST, REWARD, Range, SampleQuery, walk_of
from areal_view.index.sample_text import Marked, fragment, shortened, terms_of, texts_of
from areal_view.pages.runs import ShownRun

PAGE = 50
_QUERY = 1_000  # letters of a search
_ROSE, _STOOD = 0.1, 0.02  # of the range of a part: what counts as a rise, and what does not
_NEAR_BEST = 0.9
_CONFLICTS = 5


@dataclass(frozen=True)
class SampleLine:
    """A sample in a list. Texts are shortened, or the part around what was searched for."""

    row: SampleRow
    question: Marked
    answer: Marked
    expected: str
    fault: str
    texts: bool  # whether its text is recorded


@dataclass(frozen=True)
class SampleList:
    """A page of a list. `figures`: the parts that it can be filtered by, with their least and greatest values."""

    lines: Sequence[SampleLine]
    same: Mapping[str, int]  # answer → how many questions of this page have it; of those that several have
    after: str  # where the next page begins; empty on the last
    total: int  # samples that are recorded, whatever the filters say
    figures: Mapping[str, tuple[float, float]]
    outcomes: Mapping[str, int]
    evaluation: str
    progress: IndexProgress
    advice: str  # what to switch on where nothing is recorded


@dataclass(frozen=True)
class PartTrend:
    """A part of the reward: its mean in the first and the newest steps, and its least and greatest value."""

    name: str
    first: float | None
    newest: float | None
    low: float
    high: float


@dataclass(frozen=True)
class PartConflict:
    """A part that rose while another did not."""

    rose: PartTrend
    other: PartTrend

    @property
    def query(self) -> dict[str, str]:
        """The samples with much of the one and little of the other."""
        rose, other = self.rose, self.other
        return {
            "order": f"-{FIGURE}{rose.name}",
            f"low.{rose.name}": f"{(rose.low + rose.high) / 2:.6g}",
            f"high.{other.name}": f"{(other.low + other.high) / 2:.6g}",
        }


def query_of(asked: Mapping[str, str], figures: Sequence[str], evaluation: str = "") -> SampleQuery:
    """The query that an address asks for. Raises ValueError, with what is wrong, for one that makes no sense."""
    outcome, text = asked.get("outcome") or None, asked.get("text", "").strip()
    if outcome not in (None, *OUTCOMES):
        raise ValueError(f"no episode ends as {outcome}: they end as {', '.join(OUTCOMES)}")
    if len(text) > _QUERY or (text and not terms_of(text)):
        raise ValueError(f"text is one to {_QUERY} letters with a word in it")
    order = asked.get("order") or NEWEST
    if order.lstrip("-") not in (NEWEST, REWARD, *(FIGURE + name for name in figures)):
        raise ValueError(f"order is {NEWEST}, {REWARD} or {FIGURE}NAME, with - for the highest first")
    ranges = {name: _range(asked, f"low.{name}", f"high.{name}") for name in figures}
    kept = {name: span for name, span in ranges.items() if span != (None, None)}
    reward, version = _range(asked, "low", "high"), _range(asked, "from_version", "to_version")
    return SampleQuery(evaluation, outcome, reward, version, kept, text, order)


def sample_list(run: ShownRun, asked: Mapping[str, str], evaluation: str = "") -> SampleList:
    """A page of samples. Raises ValueError as `query_of` does."""
    index = run.index
    figures, outcomes = index.figures(evaluation), index.outcomes(evaluation)
    query = query_of(asked, list(figures), evaluation)
    found = index.page(query, PAGE, _place(asked.get("after", ""), len(walk_of(query)[0].keys)))
    lines = [line for row in found.rows if (line := line_of(index.sample(row.place), row, query.text)) is not None]
    after = ",".join(f"{number:.17g}" for number in found.after or ())
    total, recording = sum(outcomes.values()), run.resolved().get("job", {}).get("spec", {}).get("recording") or {}
    return SampleList(
        lines, _same(lines), after, total, figures, outcomes, evaluation, index.progress, advice(recording)
    )  # fmt: skip


def advice(recording: Mapping[str, object]) -> str:
    """What to switch on in a job so that there is something to read; empty where it is on."""
    if recording.get("share", 1.0) != 0:
        return ""
    kept = " Of its answers only token ids are kept, for the audit of tokens." if recording.get("tokenAudit") else ""
    return f"This job records no samples: recording.share is 0.{kept} Set recording.share to 1 to keep them with text."


def line_of(made: record.SampleRecord | None, row: SampleRow, text: str = "") -> SampleLine | None:
    """A record as a line; None when it is gone. With `text` around its first hit."""
    if made is None:
        return None
    question, answer = (_shown(raw, text) for raw in texts_of(made))
    expected, fault = shortened(made.expected), shortened(made.fault.message)
    return SampleLine(row, question, answer, expected, fault, bool(made.texts) or not made.sample.sequences)


def conflicts_of(trends: Sequence[PartTrend]) -> list[PartConflict]:
    """The parts that rose while another fell, or stood and is not good: what a gamed reward looks like."""
    found = list[tuple[float, PartConflict]]()
    for rose, other in permutations(trends, 2):
        up, down = _moved(rose), _moved(other)
        if up is not None and down is not None and up > _ROSE and down < _STOOD and not _is_good(other):
            found.append((down - up, PartConflict(rose, other)))
    return [conflict for _, conflict in sorted(found, key=lambda one: one[0])[:_CONFLICTS]]


def trends_of(run: ShownRun) -> list[PartTrend]:
    """The parts of the run's reward, and what else its samples are measured by."""
    rows = run.rows()
    some = max(1, min(100, len(rows) // 10))
    first, newest = ([row.get("figures") or {} for row in part] for part in (rows[:some], rows[-some:]))
    return [
        PartTrend(name, _mean(first, name), _mean(newest, name), low, high)
        for name, (low, high) in run.index.figures().items()
    ]


def _moved(trend: PartTrend) -> float | None:
    """By how much of its range it rose."""
    span = trend.high - trend.low
    return None if trend.first is None or trend.newest is None or not span else (trend.newest - trend.first) / span


def _is_good(trend: PartTrend) -> bool:
    return trend.newest is not None and trend.newest >= trend.low + _NEAR_BEST * (trend.high - trend.low)


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None


def _same(lines: Sequence[SampleLine]) -> dict[str, int]:
    groups = {("".join(words for words, _ in line.answer), line.row.group) for line in lines}
    counts = Counter(answer for answer, _ in groups if answer)
    return {answer: count for answer, count in counts.items() if count > 1}


def _shown(raw: bytes, text: str) -> Marked:
    return (text and fragment(raw, text)) or ([(shortened(raw), False)] if raw else [])


def _range(asked: Mapping[str, str], low: str, high: str) -> Range:
    return number_of(asked, low), number_of(asked, high)


def number_of(asked: Mapping[str, str], name: str) -> float | None:
    """A number among the parameters of an address. Raises ValueError for what is none."""
    text = asked.get(name)
    try:
        found = float(text) if text else None
    except ValueError:
        found = nan
    if found is not None and isnan(found):
        raise ValueError(f"{name} is no number")
    return found


def _place(text: str, keys: int) -> list[float] | None:
    """The place of a list that a page begins after: a number for each key of its order."""
    if not text:
        return None
    try:
        found = [float(number) if {".", "e"} & {*number} else int(number) for number in text.split(",")]
    except ValueError:
        found = []
    if len(found) != keys or not all(abs(number) < 2**63 for number in found):
        raise ValueError("after is no place of this list")
    return found
