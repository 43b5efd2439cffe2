"""`areal set`: changes of live fields, of a run on this machine and of a job on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from areal.cli.job_status import find_job
from areal.cli.runs import existing
from areal.spec.live import live_fields, nested, read_changes

MANAGER = "areal-set"


def set_command(run_dir: Path, changes: Sequence[str]) -> None:
    """Tell the run's controller, and print what is in force."""
    from areal.local.hot import HOT, set_hot

    in_force = set_hot(existing(run_dir), read_changes(changes, HOT))
    for field, value in in_force.items():
        print(f"{field}  {value}")
    print("they hold through restarts and --resume, until the job file is changed", flush=True)


def set_job_command(
    name: str, changes: Sequence[str], namespace: str | None, kubeconfig: Path | None, context: str | None
) -> None:
    """Patch the job's spec; the API server refuses what breaks a rule, the operator takes the rest over."""
    wanted = read_changes(changes, live_fields())
    cluster, job = find_job(name, namespace, kubeconfig, context)
    made = cluster.merge("RLJob", job["metadata"]["namespace"], name, {"spec": nested(wanted)}, manager=MANAGER)
    for field in wanted:
        value = made["spec"]
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        print(f"{field}  {value}")
