"""Balance of sampled tokens: what servers made against what became of it, so that none is missing or counted twice.

Servers tell what they made, workers what they hold and what they ended, the book of groups how groups end. What none of
them has for a while is lost. Pure; `counts` of one controller are where the next one goes on.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from areal.ledger.values import SampleMeta
from areal.record.episode_ends import COUNTED, GENERATED, IN_FLIGHT, TokenFate
from areal.rollout.contract.values import SampleDone
from areal.rollout.controller.groups import PromptGroup
from areal.rollout.controller.order import TrainOrder

WINDOW_S = 15.0  # longer than a stream stays broken, or a process that hangs goes unnoticed
NOISE_S = 2.0  # of generation: beats of two processes are up to that far apart, which is no gap
_BATCHES = "batches"  # number of batches whose groups were counted


class TokenBook:
    """All counts are of the whole run."""

    def __init__(self) -> None:
        self._ended: Counter[str] = Counter()  # of groups that ended and processes that are gone
        self._told: dict[str, tuple[str, dict[str, int]]] = {}  # by process: its incarnation, its counts
        self._gone: set[tuple[str, str]] = set()
        self._gaps: deque[tuple[float, int, int]] = deque()  # when, generated, of these in no book

    def restore(self, kept: Mapping[str, int]) -> None:
        """Go on from what an earlier controller kept. What was in work then its owner tells again, if it lives."""
        for key, count in kept.items():
            match key.split():
                case [process, incarnation, name] if name != IN_FLIGHT:
                    self._told.setdefault(process, (incarnation, {}))[1][name] = count
                case ["ended", name]:
                    self._ended[name] = count

    def kept(self) -> dict[str, int]:
        """The counts, and what `restore` needs."""
        state = {f"{who} {of} {name}": n for who, (of, told) in self._told.items() for name, n in told.items()}
        return self.counts() | {f"ended {name}": count for name, count in self._ended.items()} | state

    def told(self, process: str, incarnation: str, counts: Mapping[str, int]) -> None:
        """Counts of a process since it began. What the one before it had in work is in no book from now on."""
        if (process, incarnation) in self._gone:
            return
        before, last = self._told.get(process, (incarnation, {}))
        if before != incarnation:
            self._gone.add((process, before))
            self._ended.update({name: count for name, count in last.items() if name != IN_FLIGHT})
        self._told[process] = (incarnation, dict(counts))

    def ended(self, fate: TokenFate, samples: Iterable[SampleDone | SampleMeta]) -> None:
        """A group with these samples ended so."""
        for sample in samples:
            moved = sample.moved if fate is TokenFate.SERVED else 0
            self._ended.update({fate: sample.sampled - moved, TokenFate.MIGRATED: moved})

    def count_batches(self, order: TrainOrder, groups: Mapping[int, PromptGroup]) -> None:
        """Batches on disk are served, those included that a controller which died had not counted."""
        for batch in order.batches[self._ended[_BATCHES] : order.written]:
            self._ended[_BATCHES] += 1
            for group in batch:
                self.ended(TokenFate.SERVED, groups[group].done.values() if group in groups else ())

    def look(self, now: float, held: int) -> None:
        """Count as lost what is in no book for long. `held` are tokens of stored samples whose group has not ended."""
        counts = self._sum()
        in_work = held + sum(told.get(IN_FLIGHT, 0) for _, told in self._told.values())
        self._gaps.append((now, counts[GENERATED], counts[IN_FLIGHT] - in_work))
        while len(self._gaps) > 1 and now - self._gaps[1][0] >= WINDOW_S:
            self._gaps.popleft()
        began, generated, _ = self._gaps[0]
        if now - began < WINDOW_S:
            return
        noise = (counts[GENERATED] - generated) / (now - began) * NOISE_S
        gaps = [gap for _, _, gap in self._gaps]
        if min(gaps) > noise or max(gaps) < -noise:
            self._balance(min(gaps, key=abs))

    def close(self) -> None:
        """The run is over: what has no fate by now is lost."""
        self._balance(self._sum()[IN_FLIGHT])

    def counts(self) -> dict[str, int]:
        """Tokens by fate, those generated, in flight and computed again."""
        total = self._sum()
        return {name: max(0, total[name]) for name in COUNTED}

    def _sum(self) -> Counter[str]:
        """In flight is below 0 where some server didn't tell all that it made."""
        total = Counter(self._ended)
        for _, told in self._told.values():
            total.update(told)
        total[IN_FLIGHT] = total[GENERATED] - sum(total[fate] for fate in TokenFate)
        return total

    def _balance(self, gap: int) -> None:
        """So many tokens are lost; below 0, a server died before it told that it had made them."""
        self._ended.update({TokenFate.LOST: gap} if gap > 0 else {GENERATED: -gap})
        self._gaps.clear()
