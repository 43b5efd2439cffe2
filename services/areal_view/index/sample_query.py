"""Queries of a recording's samples: filters, order, and the statements that read them page by page (keyset paging).

Pure. Each order has an index of its own, which is walked in chunks from a place on, so a page costs as much on the
last sample as on the first. What a filter leaves out is walked over; how long is the reader's to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from areal.record.segment import OUTCOMES

from areal_view.index.sample_text import match_of

CHUNK = 500  # rows of one statement
WINDOW = 200_000  # ids in which a statement looks for a text

Range = tuple[float | None, float | None]  # From and to, both included; None: open

OPEN: Range = (None, None)
NEWEST = "newest"
REWARD = "reward"
FIGURE = "figures."  # Begins the order by a figure of the reward or workflow

COLUMNS = "s.id, s.g, s.i, s.reward, s.tokens, s.version, s.outcome, s.evaluation, s.file, s.offset, c.figures"


@dataclass(frozen=True)
class SampleQuery:
    """Which samples, in which order. `order`: `newest`, `reward` or `figures.NAME`; the highest first with `-`.

    A search for `text`, and a range of versions with `newest`, have the newest first; of an evaluation `newest` means
    the last rows first.
    """

    evaluation: str = ""  # samples of training unless given
    outcome: str | None = None
    reward: Range = OPEN
    version: Range = OPEN  # of the newest policy among a sample's tokens
    figures: Mapping[str, Range] = field(default_factory=dict)
    text: str = ""
    order: str = NEWEST


@dataclass(frozen=True)
class WalkedIndex:
    """The index that a query walks: tables, the columns of its order, their direction, and its own conditions."""

    tables: str
    keys: Sequence[str]
    down: bool
    where: Sequence[str]
    values: Sequence[Any]

    def statement(self, filters: Sequence[str], after: Sequence[float] | None, more: Sequence[str]) -> str:
        """Reads a chunk after a place, under `more` conditions: COLUMNS, whether the filters let it pass, its place."""
        keys = ", ".join(self.keys)
        beyond = [f"({keys}) {'<' if self.down else '>'} ({', '.join('?' * len(self.keys))})"] if after else []
        order = ", ".join(f"{key} {'DESC' if self.down else 'ASC'}" for key in self.keys)
        passes = " AND ".join(filters) or "1"
        return (
            f"SELECT {COLUMNS}, {passes}, {keys} FROM {self.tables} LEFT JOIN contents c ON c.sample = s.id "
            f"WHERE {' AND '.join([*self.where, *more, *beyond])} ORDER BY {order} LIMIT {CHUNK}"
        )


def walk_of(query: SampleQuery) -> tuple[WalkedIndex, list[str], list[Any]]:
    """The index for a query, the conditions that are left to test on each row, and their values."""
    down = query.order.startswith("-") or query.order == NEWEST or bool(query.text)
    base: list[str] = ["s.evaluation = ?"]
    values: list[Any] = [query.evaluation]
    if query.text:
        found = WalkedIndex(
            "words CROSS JOIN samples s ON s.id = words.rowid", ["words.rowid"], down, ["words MATCH ?", *base],
            [match_of(query.text), *values],
        )  # fmt: skip
    elif (name := query.order.lstrip("-")) == REWARD:
        found = _ranged("samples s", "s.reward", query.reward, base, values, down=down)
        query = replace(query, reward=OPEN)
    elif (figure := name.removeprefix(FIGURE)) != name:
        tables = "figure_values f CROSS JOIN samples s ON s.id = f.sample"
        base, values = ["f.evaluation = ?", "f.name = ?"], [*values, figure]
        found = _ranged(tables, "f.value", query.figures.get(figure, OPEN), base, values, down=down, last="f.sample")
        query = replace(query, figures={other: span for other, span in query.figures.items() if other != figure})
    elif query.version != OPEN:
        found = _ranged("samples s", "s.version", query.version, base, values, down=down)
        query = replace(query, version=OPEN)
    elif query.outcome not in (None, OUTCOMES[0]):
        base, values = [*base, "s.outcome = ?"], [*values, OUTCOMES.index(query.outcome or "")]
        found = WalkedIndex("samples s", ["s.id"], down, base, values)
        query = replace(query, outcome=None)
    else:
        found = WalkedIndex("samples s", ["s.g", "s.i", "s.id"], down, base, values)
    return found, *_filters(query)


def _ranged(
    tables: str, key: str, span: Range, where: list[str], values: list[Any], *, down: bool, last: str = "s.id"
) -> WalkedIndex:
    conditions, limits = _within(key, span)
    return WalkedIndex(tables, [key, last], down, [*where, *conditions], [*values, *limits])


def _filters(query: SampleQuery) -> tuple[list[str], list[Any]]:
    conditions, values = list[str](), list[Any]()
    if query.outcome is not None:
        conditions, values = ["s.outcome = ?"], [OUTCOMES.index(query.outcome)]
    # Names of figures, which have no quotes, are checked where they come in.
    figures = [(f"json_extract(c.figures, '$.\"{name}\"')", span) for name, span in query.figures.items()]
    for key, span in (("s.reward", query.reward), ("s.version", query.version), *figures):
        found, limits = _within(key, span)
        conditions += found
        values += limits
    return [f"COALESCE({condition}, 0)" for condition in conditions], values


def _within(key: str, span: Range) -> tuple[list[str], list[float]]:
    pairs = [(f"{key} {sign} ?", limit) for sign, limit in zip((">=", "<="), span, strict=True) if limit is not None]
    return [condition for condition, _ in pairs], [limit for _, limit in pairs]
