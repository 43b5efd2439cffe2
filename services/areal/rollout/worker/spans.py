"""Spans of a worker: each try at a sample, what its time went to, and its way into the ledger."""

from collections.abc import Iterable
from itertools import pairwise

from areal.ledger.values import NewSample
from areal.observe.traces import Traces
from areal.rollout.worker.runner import EpisodeResult, Key

_GAP_S = 0.001  # before a further turn; what is shorter is our own hand-over, not the workflow's tools


def trace_episode(traces: Traces, key: Key, attempt: int, ending: EpisodeResult, ended: float) -> None:
    """An episode is over, at `ended` (unix seconds). Evaluations are no group's life."""
    if key.evaluation or not traces.wants(key.group):
        return
    own = traces.sample(key.group, key.index, attempt)
    episode = ending.episode
    traces.emit(
        "sample",
        ending.began or ended,
        ended,
        own=own,
        parent=traces.group(key.group),
        error=ending.message,
        attributes={
            "group": key.group,
            "index": key.index,
            "attempt": attempt,
            "outcome": ending.kind.value or "complete",
            "tokens": sum(len(one.input_ids) for one in episode.sequences) if episode is not None else 0,
            **({"reward": episode.reward} if episode is not None else {}),
        },
    )
    moments = sorted(ending.moments, key=lambda moment: moment.began)
    for moment in moments:
        traces.emit(moment.what, moment.began, moment.ended, parent=own, attributes={"turn": moment.turn})
    for before, after in pairwise(moments):
        if after.what == "generate" and after.began - before.ended > _GAP_S:
            traces.emit("tools", before.ended, after.began, parent=own, attributes={"turn": after.turn})


def trace_stored(traces: Traces, samples: Iterable[NewSample], began: float, ended: float) -> None:
    """Samples went to the ledger in one round trip. Times are unix seconds."""
    for sample in samples:
        if traces.wants(sample.group):
            parent = traces.sample(sample.group, sample.index, sample.meta.attempt)
            traces.emit("store", began, ended, parent=parent, attributes={"bytes": len(sample.payload)})
