"""`summary.json`: what a run came to, for scripts.

Groups come from the audit (evidence and journal), held-out accuracy from the finished evaluations, the rest from the
trainer's steps and whoever supervised it. A resumed run adds to the wall time and restarts of the summary it finds.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from areal.errors import DataError
from areal.files import write_atomically
from areal.ledger.audit import AuditReport
from areal.observe.live import Diagnosis
from areal.record.episode_ends import COUNTED, ENDS, infra_share, wasted_share
from areal.record.run_rows import Records, best_of


@dataclass(frozen=True)
class RunEnd:
    """What only those know who watched the run."""

    status: str  # Complete | Failed | Stopped; a complete run without an update is NothingLearned
    wall_s: float
    restarts: Mapping[str, int]
    generation_tps: float  # tokens per second
    cause: Diagnosis | None = None  # what ended it, and what to do


def make(
    ending: RunEnd,
    records: Records,
    audit: AuditReport,
    earlier: Mapping[str, Any] | None = None,
    ends: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The summary. `earlier` is the one of the run that this one resumed, `ends` counts episodes and tokens."""
    earlier = earlier or {}
    steps, held_out = records.steps, records.held_out
    wall = ending.wall_s + float(earlier.get("wallSeconds", 0.0))
    restarts = {name: int(count) for name, count in (earlier.get("restarts") or {}).items()}
    for name, count in ending.restarts.items():
        restarts[name] = restarts.get(name, 0) + count
    training_s = sum(step.seconds - step.wait_seconds for step in steps)
    trained_tokens = sum(step.trained_tokens for step in steps)
    updates = _updates(records)
    groups = sum(step.groups for step in steps)
    same = sum(step.same_reward_groups for step in steps)
    ages = [step.staleness_mean for step in steps]
    summary: dict[str, Any] = {
        "status": "NothingLearned" if ending.status == "Complete" and not learned(records) else ending.status,
        "steps": records.trained,
        "wallSeconds": round(wall, 1),
        "heldOut": {
            "first": held_out[0].mean if held_out else None,
            "best": best_of(held_out).mean if held_out else None,
            "last": held_out[-1].mean if held_out else None,
            **({"sampled": dict(held_out[-1].figures)} if held_out and held_out[-1].figures else {}),
            **(
                {"sets": {name: dict(of_set) for name, of_set in held_out[-1].sets.items()}}
                if held_out and held_out[-1].sets
                else {}
            ),
        },
        "groups": {
            "trained": audit.trained,
            "tombstoned": dict(audit.tombstoned),
            "lost": len(audit.lost),
            "duplicated": len(audit.duplicated),
        },
        "updates": sum(updates) if updates else None,
        "sameRewardShare": round(same / groups, 3) if groups else None,
        "restarts": restarts,
        "staleness": {
            "mean": round(sum(ages) / len(ages), 3) if ages else 0,
            "max": max((step.staleness_max for step in steps), default=0),
        },
        "tokensPerSecond": {
            "generation": round(ending.generation_tps, 1),
            "training": round(trained_tokens / training_s, 1) if training_s > 0 else 0,
        },
    }
    if ends and (share := infra_share(ends)) is not None:
        of_episodes = {end: count for end, count in ends.items() if end in ENDS}
        summary["episodes"] = {"ends": of_episodes, "infraShare": round(share, 5)}
    if ends and (share := wasted_share(ends)) is not None:
        summary["tokens"] = {"wastedShare": round(share, 5), "fates": {name: ends[name] for name in COUNTED}}
    if losses := [step.fixed_loss for step in steps if step.fixed_loss is not None]:
        summary["loss"] = {"first": round(losses[0], 6), "last": round(losses[-1], 6)}
    if audit.used is not None:
        summary["rowUses"] = {"fewest": audit.used[0], "most": audit.used[1]}
    if ending.cause is not None:
        summary["cause"] = {name: value for name, value in asdict(ending.cause).items() if value}
    if audit.problems:
        summary["problems"] = list(audit.problems)
    return summary


def cause_of(summary: Mapping[str, Any]) -> Diagnosis | None:
    """What ended the run; None in the summary of an earlier release."""
    found = summary.get("cause")
    return TypeAdapter(Diagnosis).validate_python(found) if found else None


def learned(records: Records) -> bool:
    """Whether any step changed the model, as far as the steps tell."""
    return any(updates) if (updates := _updates(records)) else True


def _updates(records: Records) -> list[int]:
    return [step.updates for step in records.steps if step.updates is not None]


def write(path: Path, summary: Mapping[str, Any]) -> None:
    """Replace the file as a whole."""
    write_atomically(path, f"{json.dumps(summary, indent=2)}\n".encode(), durable=False)


def read(path: Path) -> dict[str, Any] | None:
    """The summary of a run; None before its first end. Raises DataError for a file that is no summary."""
    try:
        data = path.read_bytes()
        _SummaryShape.model_validate_json(data)
        loaded: dict[str, Any] = json.loads(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: {_reason(error)}",
            fix="remove it: figures of the steps are in metrics.jsonl, and the end of a resumed run writes it anew",
        ) from None
    return loaded


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {first['msg']}" if place else first["msg"]
    return str(error)


class _SummaryPart(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, strict=True)


class _HeldOutFigures(_SummaryPart):
    first: float | None
    best: float | None
    last: float | None


class _GroupCounts(_SummaryPart):
    trained: int
    tombstoned: dict[str, int]
    lost: int
    duplicated: int


class _Staleness(_SummaryPart):
    mean: float
    max: int


class _Speed(_SummaryPart):
    generation: float
    training: float


class _SummaryShape(_SummaryPart):
    """What every summary has; those of other releases may have more."""

    status: str
    steps: int
    wall_seconds: float
    held_out: _HeldOutFigures
    groups: _GroupCounts
    restarts: dict[str, int]
    staleness: _Staleness
    tokens_per_second: _Speed
