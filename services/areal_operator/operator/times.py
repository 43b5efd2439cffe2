"""Durations of decisions about a job, each with its reason, and moments as Kubernetes writes them. Pure.

What users may choose is in the job's spec. A moment is counted in seconds since 1970, and written to the second.
"""

from datetime import UTC, datetime
from functools import lru_cache

SOON_S = 1.0
"""After something was begun whose end no watch reports: a launcher was told, a write was lost to a newer one."""
STEADY_S = 20.0
"""A running job is looked at this often even when nothing changes: bounds the harm of a lost notification."""
FLUSH_S = 10.0
"""Figures that change all the time are written at most this often: a thousand jobs must not wear out etcd."""
RETRY_MISSING_S = 15.0
"""Until a runtime or a recipe that was not there is looked for again, should its creation go unnoticed."""
RETRY_REFUSED_S = 60.0
"""Until children that the API server refused are tried again: quotas and admission policies change unseen."""
PODS_LATE_S = 10.0  # controllers make pods at once: after this long something refuses them
RETRY_PODS_S = 20.0  # between two questions why pods are refused
DRAIN_S = 600.0  # how long a suspension waits for the trainer's checkpoint before it frees the pods without one
DRAIN_GRACE_S = 540.0
"""What a launcher is given to end its child. Shorter than DRAIN_S, so that the launcher's end is still seen."""
STUCK_S = 10.0
"""A pod is this long past its grace period before its node is held responsible: a healthy kubelet needs a moment."""
SILENT_S = 15.0
"""A machine is this long unheard of, on top of the 40 to 50 s that Kubernetes itself waits, before pods whose double
run is fenced are replaced: a kubelet that restarts is back by then."""
CREATED_S = 30.0  # pods that are asked for have a node within this time, where there is one
CAUSE_S = 70.0
"""How long the end of a trainer waits for a cause elsewhere: the 50 s until a dead machine shows, and a margin."""
FRESH_S = 30.0  # an answer older than this says nothing about now
POLL_S = 2.0  # between two rounds of questions to a job's roles: a dead trainer should be known within 3 s
ASK_S = 1.5
"""For one answer. Shorter than POLL_S, so that one silent role doesn't delay the news of the others."""
QUIET_S = 2 * (POLL_S + ASK_S)
"""A launcher that missed two rounds: nothing is claimed of its trainer any more, before anybody knows what happened."""
TELL_S = 5.0  # for one order (restart, drain, hot fields): launchers answer at once, they don't wait for their child


@lru_cache(maxsize=4096)  # the same few times are read at every look
def parse(text: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; None for none, or for what is no time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def render(seconds: float) -> str:
    """RFC 3339, rounded down to the second."""
    return _render(int(seconds))


@lru_cache(maxsize=4096)
def _render(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def words(seconds: float) -> str:
    """A duration for people: `45 s`, `12 min`, `3 h 5 min`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
