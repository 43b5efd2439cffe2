"""Size of a fleet that follows its trainer: more servers while training waits for samples, fewer while samples wait.

A fleet of one size is watched for a whole window before it is judged, from the moment that all its servers answer: so
a size that was chosen is seen at work before the next one is. Pure.
"""

import math
from dataclasses import dataclass, replace

from areal.observe.live import IdleCause
from areal.spec.serving import ElasticFleet
from areal.v1 import rollout_pb2 as rollout

from areal_operator.operator.times import FRESH_S

LEAST_STEPS = 3  # of a window: what one long batch waits for says little
STARVED = 0.1  # of the time, above which there are too few servers
MARGIN = 1.05  # over what training takes, which a smaller fleet must make: half of STARVED, so that it stays
_GENERATING = (None, IdleCause.CONCURRENCY)  # nothing but the servers' pace holds samples up


@dataclass(frozen=True)
class FleetWatch:
    """Seconds for which a fleet of this many servers was seen, and of them those that training waited for it, or it
    for training."""

    servers: int
    since: float
    at: float
    first_step: int
    step: int
    starved_s: float = 0.0
    gated_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Of the whole watch."""
        return self.at - self.since


def watched(
    last: FleetWatch | None, answer: rollout.GetRolloutStatusResponse, idle: IdleCause | None, now: float
) -> FleetWatch:
    """The watch after another answer of the controller; a new one where the fleet has another size."""
    servers = sum(one.live and one.version >= 0 and not one.draining for one in answer.fleet)
    if last is None or now - last.at > FRESH_S or last.servers != servers or answer.trainer_step < last.step:
        return FleetWatch(servers, now, now, answer.trainer_step, answer.trainer_step)
    passed = now - last.at
    return replace(
        last,
        at=now,
        step=answer.trainer_step,
        starved_s=last.starved_s + passed * (bool(answer.batch_waits) and idle in _GENERATING),
        gated_s=last.gated_s + passed * (idle is IdleCause.GATE_CLOSED),
    )


def resized(limits: ElasticFleet, servers: int, watch: FleetWatch | None) -> tuple[int, str]:
    """The number of servers that is wanted, and why; `servers` and "" where nothing is to change."""
    bounded = min(max(servers, limits.min_replicas), limits.max_replicas)
    if bounded != servers:
        return bounded, f"between {limits.min_replicas} and {limits.max_replicas} are wanted"
    if watch is None or watch.servers != servers or watch.seconds < limits.window_seconds:
        return servers, ""
    if watch.step - watch.first_step < LEAST_STEPS:
        return servers, ""
    starved, gated = watch.starved_s / watch.seconds, watch.gated_s / watch.seconds
    if starved > STARVED:
        wanted = min(math.ceil(servers / max(1 - starved, 0.5)), limits.max_replicas)
        why = f"training waited {starved:.0%} of {watch.seconds:.0f} s for samples"
    else:
        needed = servers * (1 - gated) * MARGIN
        wanted = min(servers, max(math.ceil(needed), math.ceil(servers / 2), limits.min_replicas))
        why = f"generation was as far ahead as it may be for {gated:.0%} of {watch.seconds:.0f} s"
    return (wanted, f"{why}: {servers} → {wanted} servers") if wanted != servers else (servers, "")
