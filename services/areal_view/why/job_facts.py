"""Objects of the API server that belong to one job, as plain dicts, and how they are read. Pure.

Owns which field of a condition, pod, event or claim means what to the table of causes. Everything may be missing: a
user may not be allowed to read nodes, an object may be younger than its status.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Json = Mapping[str, Any]

ROLE = "areal.dev/role"
PASSING = frozenset({"", "ContainerCreating", "PodInitializing"})  # what every pod goes through


@dataclass(frozen=True)
class JobFacts:
    """What the API server holds of a job and of what it needs."""

    job: Json
    now: float  # unix seconds
    pods: Sequence[Json] = ()
    events: Sequence[Json] = ()  # of events.k8s.io/v1, of the whole namespace
    nodes: Sequence[Json] | None = None  # None: not allowed to read them
    claims: Sequence[Json] | None = None

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def status(self) -> Json:
        return self.job.get("status") or {}

    def condition(self, kind: str) -> Json:
        """A condition of the job; empty before it was written."""
        return condition(self.job, kind)

    def false(self, kind: str, *reasons: str) -> Json | None:
        """The condition while it is False or nobody knows, for one of the reasons if any are named."""
        found = self.condition(kind)
        told = found.get("status") in ("False", "Unknown") and (not reasons or found.get("reason") in reasons)
        return found if told else None

    def since(self, text: str | None) -> float | None:
        """Age of a moment in RFC 3339."""
        at = moment(text)
        return max(0.0, self.now - at) if at is not None else None

    def event(self, kind: str, name: str, *reasons: str) -> Json | None:
        """The newest event about an object, of these reasons."""
        about = [
            one
            for one in self.events
            if one.get("reason") in reasons
            and (of := one.get("regarding") or {}).get("kind") == kind
            and of.get("name") == name
        ]
        return max(about, key=seen_at, default=None)

    def node(self, name: str) -> Json | None:
        return next((one for one in self.nodes or () if one["metadata"]["name"] == name), None)

    def current(self) -> Iterator[Json]:
        """Pods that have not ended."""
        return (pod for pod in self.pods if phase(pod) not in ("Succeeded", "Failed"))


def condition(obj: Json, kind: str) -> Json:
    """A condition of an object; empty where there is none."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((one for one in found if one.get("type") == kind), {})


def moment(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 text."""
    return datetime.fromisoformat(text).timestamp() if text else None


def seen_at(event: Json) -> float:
    """When an event was last seen."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("deprecatedLastTimestamp")
    return moment(last or event.get("eventTime") or event["metadata"].get("creationTimestamp")) or 0.0


def phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def role(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def name_of(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def node_name(pod: Json) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def containers(pod: Json) -> list[Json]:
    """The status of each container, those that run first before the others."""
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def waiting(pod: Json) -> tuple[Json, Json] | None:
    """The first container that waits for more than every pod does, and its waiting state."""
    for container in containers(pod):
        state = (container.get("state") or {}).get("waiting") or {}
        if state.get("reason", "") not in PASSING:
            return container, state
    return None


def started(pod: Json) -> bool:
    """Whether any of its containers has ever run."""
    states = (container.get("state") or {} for container in containers(pod))
    return any("running" in state or "terminated" in state for state in states)


def last_end(container: Json) -> Json:
    """Last end of a container; empty when it never ended."""
    state = (container.get("state") or {}).get("terminated")
    return state or (container.get("lastState") or {}).get("terminated") or {}


def claim_names(pod: Json) -> list[str]:
    """The claims that a pod mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if one.get("persistentVolumeClaim")]


# ---- Removal of secrets from text that leaves the machine: known values first, then what looks like a secret. Pure


REMOVED = "[removed]"
_SHORTEST = 6  # characters of a known secret: a shorter one would remove words

_NAMED = re.compile(
    r"""(?ix) (["']?[\w.-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key
    |credentials?|authorization|cookie)["']? \s*[=:]\s* ["']?) (?:(?:bearer|basic)\s+)? ([^\s"',;}\]&]{4,})"""
)
_SHAPED = re.compile(
    r"""(?x) \b(?: hf_[A-Za-z0-9]{16,} | sk-[A-Za-z0-9_-]{16,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}
    | (?:AKIA|ASIA)[A-Z0-9]{16} | xox[abprs]-[A-Za-z0-9-]{10,} | glpat-[\w-]{16,} | wandb_v1_\w{16,}
    | eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]* )"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_IN_ADDRESS = re.compile(r"(\w+://[^\s/:@]*:)[^\s/@]+@")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_COUNTS = re.compile(r"^\d+(\.\d+)?$")  # `max_tokens: 16` is no secret


def redacted(text: str, secrets: Collection[str] = ()) -> str:
    """The text without `secrets` and without what looks like a password, key or token."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, REMOVED)
    text = _KEY_BLOCK.sub(REMOVED, text)
    text = _SHAPED.sub(REMOVED, text)
    text = _BEARER.sub(rf"\1 {REMOVED}", text)
    text = _IN_ADDRESS.sub(rf"\1{REMOVED}@", text)
    return _NAMED.sub(lambda found: found[0] if _COUNTS.match(found[2]) else found[1] + REMOVED, text)
