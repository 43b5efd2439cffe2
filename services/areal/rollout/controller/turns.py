"""Turns on cards that servers and trainer share: whose it is, and when it ends.

Owns the turn's number, which fences orders: whoever heard of a later turn ignores an earlier one. Pure. A controller
that starts doesn't know who has the cards: it begins with a training turn, which a trainer without work gives back at
once, and one that is dead keeps until it is back.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardDemand:
    """What the turn is decided by."""

    given_back: int  # the newest turn after which the living trainer gave the cards back
    wanted: bool  # the trainer asks for them, whatever there is to train
    batch: bool  # the next batch is whole
    evaluating: bool  # answers of an evaluation are missing
    idle: bool  # nothing is generated, and no trainer is there to ask for more


class CardTurns:
    """The turn of one job. `first` is its number; a controller's turns are above those of the ones before it."""

    def __init__(self, first: int, now: float) -> None:
        self._first = first
        self.number = first
        self.training = True
        self.since = now

    @property
    def count(self) -> int:
        """Number of this turn since the controller started, from 1 on: for people."""
        return self.number - self._first + 1

    def judge(self, demand: CardDemand, now: float) -> bool:
        """Whether the turn ended, and the other side's begins.

        A batch that is whole ends generation at every staleness: what of later batches runs then is kept, and goes on
        afterwards. An evaluation is not interrupted for it.
        """
        if self.training:
            over = demand.given_back >= self.number  # also of one that wants the next: it waits for another number
        else:
            over = demand.wanted or (not demand.evaluating and (demand.batch or demand.idle))
        if over:
            self.number += 1
            self.training = not self.training
            self.since = now
        return over
