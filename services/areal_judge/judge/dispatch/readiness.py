"""Readiness probe: runs the self-test at the start and again and again, and keeps its newest outcome.

Owns the rhythm and the outcome; what is tested is the caller's. One failure is enough to be not ready, one success to
be ready again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from areal.errors import ArealError

log = logging.getLogger(__name__)

PERIOD_S = 60.0
AFTER_FAILURE_S = 5.0
TEST_S = 30.0  # a self-test that takes longer has failed


@dataclass(frozen=True)
class SelfTestFinding:
    """The outcome of one self-test."""

    passed: bool
    words: str
    breach: bool = False  # an attack won: nothing more may run


class Readiness:
    """Tests, remembers, and tells whoever wants to know when it changes."""

    def __init__(
        self,
        test: Callable[[], Awaitable[SelfTestFinding]],
        changed: Callable[[bool], Awaitable[None]],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._test = test
        self._changed = changed
        self._period_s = period_s
        self.ready = False
        self.breached = False
        self.words = "the self-test has not run yet"

    async def check(self) -> bool:
        """Tests once; whether it passed."""
        try:
            tested = await asyncio.wait_for(self._test(), TEST_S)
        except TimeoutError:
            tested = SelfTestFinding(False, f"the self-test was not over after {TEST_S:g} s")
        except ArealError as error:
            tested = SelfTestFinding(False, f"the self-test could not run: {error.message}")
        except Exception as error:
            log.exception("the self-test failed")
            tested = SelfTestFinding(False, f"the self-test failed: {type(error).__name__}: {error}")
        if tested.passed != self.ready:
            log.log(logging.INFO if tested.passed else logging.ERROR, "self-test: %s", tested.words)
        self.ready, self.words, self.breached = tested.passed, tested.words, tested.breach
        await self._changed(self.ready)
        return self.ready

    async def keep(self) -> None:
        """Tests until cancelled."""
        while True:
            await asyncio.sleep(self._period_s if self.ready else min(AFTER_FAILURE_S, self._period_s))
            await self.check()
