"""Durations of the runtime, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RequestTimes:
    """Single requests."""

    deadline_s: float = 30.0  # a dry run of a large object on a loaded server; the server itself gives up at 60 s
    connect_s: float = 10.0
    patience_s: float = 60.0  # how long one call goes on while the server answers 429
    longest_pause_s: float = 30.0  # a Retry-After above this is cut: better to fail, and let the key back off


@dataclass(frozen=True)
class WatchTimes:
    """List and watch of one resource."""

    shortest_s: float = 240.0  # the server ends each watch after a random time between these two, so that
    longest_s: float = 360.0  # watches of many resources and operators don't all begin anew at once
    margin_s: float = 15.0  # the client hangs up this much after the server should have: the connection is half-open
    relist_s: float = 3600.0  # a full list now and then, whatever the watch says: bounds the harm of a lost change
    page: int = 500  # objects a list page: about 5 MB of pods
    first_backoff_s: float = 0.5
    longest_backoff_s: float = 30.0
    steady_s: float = 10.0  # a watch that lived this long was not a failure: the back-off starts over


@dataclass(frozen=True)
class LeaseTimes:
    """Leader election. A leader stops before anyone may take over: `renew_s` < `duration_s`."""

    duration_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0


@dataclass(frozen=True)
class QueueTimes:
    """Back-off of a key whose worker raised."""

    first_backoff_s: float = 1.0
    longest_backoff_s: float = 300.0


@dataclass(frozen=True)
class HealthTimes:
    """When a process is too ill to go on."""

    watch_silence: float = 3.0  # times the longest watch: no bookmark, no end, no list in all this time
    loop_lag_s: float = 30.0
    beat_s: float = 1.0


@dataclass(frozen=True)
class EventTimes:
    """Aggregation of events."""

    series_s: float = 360.0  # silence that ends a series
    refresh_s: float = 60.0  # a series is written at most this often
    budget: int = 25  # new events about one object at once, and one more every `refill_s`
    refill_s: float = 300.0
