"""Retry of a judgement: once more when the sandbox failed, never when the program did.

Owns what a failure of the machine turns into, and the guard: a judge that answers nothing, or something that is no
judgement, is a SANDBOX_ERROR. A program that ran into a limit is never tried again.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from areal.errors import ArealError, ConfigError

from areal_judge.judge.dispatch.values import ExecutionResult
from areal_judge.judge.values import OF_PROGRAM, Judgement, Status

log = logging.getLogger(__name__)
A = TypeVar("A", Judgement, ExecutionResult)

RETRY_PAUSE_S = 0.25  # what took one zygote may be taking others: they are replaced by then


async def attempted(
    once: Callable[[], Awaitable[A]], guard_s: float, failed: Callable[..., A], retried: Callable[[], None]
) -> A:
    """The outcome of the first attempt, or of the second one when the sandbox failed on the first.

    Args:
        once: one attempt; it is given up after `guard_s`.
        failed: makes the outcome of an attempt that had none, of a status and a `message`.
        retried: hears of a second attempt.
    """
    result = await _attempt(once, guard_s, failed)
    if result.status is not Status.SANDBOX_ERROR:
        return result
    log.warning("the sandbox failed, trying once more: %s", result.message)
    retried()
    await asyncio.sleep(RETRY_PAUSE_S)
    return replace(await _attempt(once, guard_s, failed), attempt=2)


async def _attempt(once: Callable[[], Awaitable[A]], guard_s: float, failed: Callable[..., A]) -> A:
    guard = asyncio.timeout(guard_s)
    try:
        async with guard:
            return _sound(await once(), failed)
    except TimeoutError:
        if not guard.expired():
            raise
        log.error("a judgement took more than %g s and was given up", guard_s)
        return failed(Status.SANDBOX_ERROR, message=f"it was not over after {guard_s:g} s, which no limit allows")
    except ConfigError as error:
        return failed(Status.REJECTED_TIER, message=str(error))
    except ArealError as error:
        return failed(Status.SANDBOX_ERROR, message=str(error))
    except Exception as error:
        log.exception("judging failed")
        return failed(Status.SANDBOX_ERROR, message=f"judging failed: {type(error).__name__}: {error}")


def _sound(result: A, failed: Callable[..., A]) -> A:
    """A judgement has a score exactly when its status is the program's doing, or it is no judgement."""
    if isinstance(result, Judgement):
        scored = result.score is not None and math.isfinite(result.score)
        if scored != (result.status in OF_PROGRAM) or (not scored and result.score is not None):
            log.error("the judge answered %s with the score %r", result.status, result.score)
            return failed(
                Status.SANDBOX_ERROR, message=f"the judge answered {result.status} with the score {result.score}"
            )
    return result
