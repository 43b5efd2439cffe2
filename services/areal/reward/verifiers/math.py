"""`math`: mathematical equality of the final answer and the row's answer.

Text decides what it can (`extraction`), computer algebra the rest, in processes that are killed at a deadline. A
deadline is a verdict (TIMEOUT, score 0, for the trainer to mask if it likes), for it says something about the answer; a
process that could not be had is a fault. Equal questions are asked once: a group repeats its answers a lot.
"""

import asyncio
import os
import re
import time
from collections.abc import Sequence

from cachetools import LRUCache

from areal.errors import DataError
from areal.observe.waits import WaitRegistry
from areal.reward.scorer_pool.pool import DeadlineHit, KillablePool, Outcome, PoolSize, ScorerAnswer, ScorerCrash
from areal.reward.scorer_pool.process import ScorerCommand
from areal.reward.verifier import Verifier, data_fault, fault_result, gold_of_row, row_of_item
from areal.reward.verifiers.extraction import extract, gold_text, quick_verdict
from areal.reward.verifiers.guards import too_complex
from areal.reward.verifiers.normalisation import TEXT, rounded
from areal.reward.verifiers.units import DENIALS, UNITS
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb

SCORER = "areal.reward.scorers.math"
_CHECK_S = 2.0  # the slowest of math-verify's own test pairs takes 0.5 s
_QUEUE_S = 120.0
_CACHED = 100_000
_RECYCLE_ITEMS = 2_000  # sympy's caches grow
_RECYCLE_GROWTH_BYTES = 150 << 20
_MEMORY_BYTES = 1 << 30
_KEPT = ("EQUAL", "NOT_EQUAL", "UNPARSEABLE", "NO_ANSWER", "GOLD_UNPARSEABLE")  # what asking again would not change

Key = tuple[str, str, bool]  # expected answer, answer, marked as one
Graded = tuple[str, str]  # status, detail


class MathVerifier(Verifier):
    """Grades answers; processes with math-verify start at the first answer that needs them."""

    name = "math"

    def __init__(
        self,
        answer_field: str,
        *,
        gold_rounds: bool = False,
        check_s: float = _CHECK_S,
        size: PoolSize | None = None,
        waits: WaitRegistry | None = None,
    ) -> None:
        workers = max(2, (os.cpu_count() or 2) // 2)
        command = ScorerCommand(SCORER, memory_bytes=_MEMORY_BYTES, preloaded=True, confined=True)
        default = PoolSize(workers, workers, recycle_items=_RECYCLE_ITEMS, recycle_growth_bytes=_RECYCLE_GROWTH_BYTES)
        self._field = answer_field
        self._gold_rounds = gold_rounds
        self._check_s = check_s
        self._pool = KillablePool(command, size or default, waits)
        self.slots = self._pool.slots
        self._starting = asyncio.Lock()
        self._started = False
        self._known: LRUCache[Key, Graded] = LRUCache(_CACHED)
        self._asked: dict[Key, asyncio.Future[Graded | pb.ScoreResult]] = {}

    async def stop(self) -> None:
        if self._started:
            await self._pool.stop()

    async def score(self, items: Sequence[pb.ScoreItem]) -> list[pb.ScoreResult]:
        results: list[pb.ScoreResult | None] = [None] * len(items)
        waiting: dict[int, asyncio.Future[Graded | pb.ScoreResult]] = {}
        fresh: list[tuple[Key, float]] = []
        began = time.monotonic()
        for index, item in enumerate(items):
            key = self._quick(item)
            if isinstance(key, pb.ScoreResult):
                results[index] = key
                continue
            if (known := self._known.get(key)) is not None:
                results[index] = _verdict(known, "CACHED")
                continue
            if key not in self._asked:
                self._asked[key] = asyncio.get_running_loop().create_future()
                fresh.append((key, min(self._check_s, item.deadline_s or self._check_s)))
            waiting[index] = self._asked[key]
        if fresh:
            # A task of its own: others may wait for these answers too, so they outlive this caller.
            asking = asyncio.create_task(self._ask(fresh))
            await asyncio.shield(asking)
        for index, future in waiting.items():
            graded = await asyncio.shield(future)
            if isinstance(graded, pb.ScoreResult):
                results[index] = graded
            else:
                results[index] = _verdict(graded, "SYMPY", wall_s=time.monotonic() - began)
        return [result for result in results if result is not None]

    def _quick(self, item: pb.ScoreItem) -> Key | pb.ScoreResult:
        """The result where text decides it; otherwise what to ask computer algebra."""
        try:
            gold = gold_text(gold_of_row(row_of_item(item), self._field))
        except DataError as error:
            return data_fault(error)
        if not gold:
            return _verdict(("GOLD_UNPARSEABLE", ""), "FAST")
        if (found := extract(item.completion)) is None:
            return _verdict(("NO_ANSWER", ""), "FAST")
        if (equal := quick_verdict(gold, found.text)) is not None:
            return _verdict(("EQUAL" if equal else "NOT_EQUAL", ""), "FAST")
        if (why := too_complex(gold, found.text)) is not None:
            return _verdict(("TOO_COMPLEX", why), "FAST")
        if found.marked and (why := another_answer(gold, found.text)) is not None:
            return _verdict(("NOT_EQUAL", why), "FAST")
        return gold, " ".join(found.text.split()), found.marked

    async def _ask(self, fresh: list[tuple[Key, float]]) -> None:
        outcome: Graded | pb.ScoreResult = fault_result(common.FAULT_KIND_INFRA, "the math verifier was stopped")
        try:
            async with self._starting:
                if not self._started:
                    await self._pool.start()
                    self._started = True
            outcomes = await self._pool.run(
                [[*key, self._gold_rounds] for key, _ in fresh], [s for _, s in fresh], _QUEUE_S
            )
            for (key, _), each in zip(fresh, outcomes, strict=True):
                graded = _graded(each)
                if not isinstance(graded, pb.ScoreResult) and graded[0] in _KEPT:
                    self._known[key] = graded
                self._asked.pop(key).set_result(graded)
        except Exception as error:
            outcome = fault_result(common.FAULT_KIND_INFRA, f"the math verifier cannot work: {error}")
        finally:
            for key, _ in fresh:
                if key in self._asked:
                    self._asked.pop(key).set_result(outcome)


def _graded(outcome: Outcome) -> Graded | pb.ScoreResult:
    match outcome:
        case ScorerAnswer(["ERROR", detail]):
            return fault_result(common.FAULT_KIND_BUG, f"math-verify failed: {detail}")
        case ScorerAnswer([str(status), str(detail)]):
            return status, detail
        case ScorerAnswer(value):
            return fault_result(common.FAULT_KIND_BUG, f"a scorer answered {value!r:.80}")
        case DeadlineHit(deadline_s):
            return "TIMEOUT", f"more than {deadline_s:g} s"
        case ScorerCrash(how):
            return "TOO_COMPLEX", f"ended its process twice ({how})"
        case _:
            return fault_result(common.FAULT_KIND_INFRA, outcome.reason, fix="it is tried again")


def _verdict(graded: Graded, method: str, *, wall_s: float = 0.0) -> pb.ScoreResult:
    status, detail = graded
    if status == "GOLD_UNPARSEABLE":
        return fault_result(
            common.FAULT_KIND_DATA,
            "GOLD_UNPARSEABLE: the row's answer is no mathematics that can be compared",
            fix="correct the answer in the dataset, or use the exact verifier",
        )
    verdict = common.Verdict(score=1.0 if status == "EQUAL" else 0.0, status=status, method=method, detail=detail)
    return pb.ScoreResult(verdict=verdict, wall_s=wall_s)


# ---- Notation that computer algebra drops, though it makes another answer: kinds of brackets, bases, marks, prose
# Pure text work on an answer that was marked as one. It refuses only what the expected answer doesn't have itself.


_LAYOUT = re.compile(r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|displaystyle)(?![a-zA-Z])|\\[,;:! ]|\s+")
_WORD = re.compile(r"[^\W\d_]+")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_OWN_NUMBER = re.compile(r"(?<![\w^])\d")  # not the 2 of m2
_SEPARATOR = re.compile(r"[,;|]")
_LIST = re.compile(r",|;|\\pm|\\cup|\\lor|\\vee|\\begin|\b(?:or|and)\b")
_LABEL = re.compile(r"\s*\\(?:text|mathrm)\{([a-zA-Z ]{1,40})\}\s*=(?=[^=]*$)")  # \text{Area} = 42
_CONNECTIVES = frozenset({"or", "and"})
_FUNCTIONS = """
    sin cos tan cot sec csc sinh cosh tanh arcsin arccos arctan log ln lg exp det gcd lcm max min deg dim rank tr
"""
_KNOWN = UNITS | frozenset(_FUNCTIONS.split())
_BASE = re.compile(r"(?:(?<=\d)|(?<=\d[)\]}]))_\{?(?:\\text\{|\\mathrm\{)?(\w+)|base\W*(\w+)")
_PRIME = re.compile(r"[\d)\]}](?:'|′|\^\{?\\prime)")
_PERCENT = re.compile(r"%|percent(?!age)")
_RELATION = re.compile(r"\\(?:approx|mod|pmod|bmod|sim|simeq|equiv|doteq|cong)(?![a-zA-Z])|≈|≡")
_ASSIGNED = re.compile(r"^.*(?:(?<![<>!])=|\\in(?![a-zA-Z]))", re.DOTALL)
_COUNTED = re.compile(r"(?<=\d)\s+([a-zA-Z]{4,})\b")
_CLOSERS = {"(": ")", r"\{": r"\}"}


def another_answer(gold: str, answer: str) -> str | None:
    """What an answer says beside, or instead of, a value that may equal the expected one; None when nothing."""
    gold_flat, flat = _LAYOUT.sub("", gold), _LAYOUT.sub("", answer)
    if {_enclosure(gold_flat), _enclosure(flat)} == {"(", r"\{"}:
        return "a set is no tuple"
    if (base := _base(flat)) is not None and base != _base(gold_flat):
        return "a number in another base"
    for name, mark in (("a percentage", _PERCENT), ("a prime", _PRIME)):
        if mark.search(flat) and not mark.search(gold_flat):
            return f"{name} where the expected answer has none"
    if (related := _RELATION.search(answer)) and related[0] not in gold and rounded(answer) is None:
        return "a relation where the expected answer has none"
    if _says_more(gold, answer):
        return "it says more than an answer and its unit"
    return None


def _enclosure(flat: str) -> str | None:
    """The bracket around the whole of a list; None without one, or without a list in it."""
    flat = _ASSIGNED.sub("", flat)
    opening = next((opening for opening in _CLOSERS if flat.startswith(opening)), None)
    if opening is None or not flat.endswith(_CLOSERS[opening]):
        return None
    depth, listed = 0, False
    for at, character in enumerate(flat):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and at < len(flat) - 1:
                return None
        elif character == "," and depth == 1:
            listed = True
    return opening if listed else None


def _base(flat: str) -> str | None:
    found = _BASE.search(flat)
    return None if found is None else (found[1] or found[2]).lower()


def _says_more(gold: str, answer: str) -> bool:
    """Whether a text in an answer holds a word that is no unit, or a number of its own: 42 \\text{ is wrong}."""
    known: set[str] | None = None
    if (label := _LABEL.match(answer)) is not None and not _words(label[1]) & DENIALS:
        answer = answer[label.end() :]
    if any(word not in gold and word.lower() not in _FUNCTIONS for word in _COUNTED.findall(answer)):
        return True  # what was a unit has gone
    for found in TEXT.finditer(answer):
        if found[0] in gold or found[0] == answer:
            continue
        if known is None:
            known = _words(gold) | (_CONNECTIVES if _LIST.search(gold) else frozenset())
        said = _COMMAND.sub(" ", found[1])
        if _BASE.search(said):
            continue  # it is compared as a base
        if _OWN_NUMBER.search(said) or _SEPARATOR.search(said):
            return True
        if any(len(word) > 1 and word not in known and word not in _KNOWN for word in _words(said)):
            return True
    return False


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(_COMMAND.sub(" ", text))}
