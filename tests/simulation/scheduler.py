"""Virtual time: events in order, processes as generators, one seeded source of chance.

Owns the clock of a simulated world. A process yields the seconds it sleeps; stopping it drops it where it stands, which
is how a role dies between any two of its steps.
"""

import heapq
import random
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

Process: TypeAlias = Generator[float, None, None]


class VirtualScheduler:
    """An event queue. Equal times keep the order in which they were asked for."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.events = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` in `delay_s` seconds."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, call, args))

    def run(self, until_s: float, done: Callable[[], bool]) -> bool:
        """Run until `done()`, at most to the time `until_s`; answers whether it was done."""
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            self.now, _, call, args = heapq.heappop(queue)
            self.events += 1
            call(*args)
            if done():
                return True
        return done()

    def between(self, low_s: float, high_s: float) -> float:
        """A random duration."""
        return low_s + (high_s - low_s) * self.random.random()


class Pipe:
    """One direction of a stream: messages take a while but stay in order. `lag_s` is added to all from then on."""

    def __init__(self, scheduler: VirtualScheduler) -> None:
        self.lag_s = 0.0
        self._scheduler = scheduler
        self._arrival = 0.0

    def send(self, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` at the other end."""
        scheduler = self._scheduler
        self._arrival = max(self._arrival, scheduler.now + scheduler.between(0.001, 0.02) + self.lag_s)
        scheduler.after(self._arrival - scheduler.now, call, *args)


class Incarnation:
    """One incarnation of a role: its processes and timers run while it is alive, and wait while it is paused."""

    def __init__(self, scheduler: VirtualScheduler) -> None:
        self.alive = True
        self.paused_at: float | None = None
        self._scheduler = scheduler
        self._held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def end(self) -> None:
        """Everything of this life stops at once."""
        self.alive = False
        self._held.clear()

    def pause(self) -> None:
        """Nothing runs until `resume`; what was due by then runs there, in order."""
        self.paused_at = self._scheduler.now

    def resume(self) -> None:
        """Go on as if no time had passed."""
        self.paused_at = None
        held, self._held = self._held, []
        for call, args in held:
            self.after(0.0, call, *args)

    @property
    def silent_s(self) -> float:
        """For how long nothing was heard of it, because it is paused."""
        return 0.0 if self.paused_at is None else self._scheduler.now - self.paused_at

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """As `VirtualScheduler.after`, unless this life has ended by then."""
        self._scheduler.after(delay_s, self._if_alive, call, args)

    def _if_alive(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.alive:
            return
        if self.paused_at is None:
            call(*args)
        else:
            self._held.append((call, args))

    def start(self, process: Process) -> None:
        """Run a process up to its next sleep, and so on."""
        try:
            delay_s = next(process)
        except StopIteration:
            return
        self._scheduler.after(delay_s, self._if_alive, self.start, (process,))
