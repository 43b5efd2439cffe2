"""`--wait`: a job's status as one line that changes, until the job has ended."""

import time
from collections.abc import Callable

from areal.errors import ConfigError, ExitCode
from areal.spec.status import ConditionType, FailedReason, JobStatus

from areal_operator.submit.cluster import Cluster
from areal_operator.submit.manifests import Json

Show = Callable[[str], None]


def follow(cluster: Cluster, job: Json, show: Show) -> tuple[ExitCode, str]:
    """Watch until the job is complete, has failed or is refused; the exit code and a sentence for it."""
    metadata = job["metadata"]

    def look(seen: Json | None) -> tuple[ExitCode, str] | None:
        if seen is None or seen["metadata"]["uid"] != metadata["uid"]:
            return ExitCode.CONFIG, f"{metadata['name']} was deleted"
        status = JobStatus.model_validate(seen.get("status") or {})
        show(line(status))
        return ended(metadata["name"], status, seen["metadata"].get("generation", 0))

    return cluster.until(
        "RLJob", metadata["namespace"], metadata["name"], look, timeout_s=None, late=lambda seen: ConfigError("")
    )


def line(status: JobStatus) -> str:
    """One line for people."""
    parts = [status.summary or "waiting for the operator"]
    if (progress := status.progress) is not None:
        parts.append(f"step {progress.step}/{progress.max_steps}")
        if progress.policy_version is not None:
            parts.append(f"policy {progress.policy_version}")
        if progress.reward is not None:
            parts.append(f"reward {progress.reward:.3f}")
    if status.generation is not None:
        fleet = status.generation
        parts.append(f"generation {fleet.ready_replicas}/{fleet.replicas}" + (f" ({fleet.why})" if fleet.why else ""))
    if status.usage is not None:
        parts.append(f"{status.usage.gpus} GPUs, {status.usage.until(time.time()) / 3600:.1f} GPU hours")
    if status.attempts is not None and status.attempts.restarts:
        parts.append(f"restarts {status.attempts.restarts}")
    if status.summary not in ("", "Running", "Complete", "Failed", "Rejected", "Completing", "Suspended"):
        holding = next((each for each in reversed(status.conditions) if each.status != "True" and each.message), None)
        parts += [holding.message] if holding else []
    return "  ".join(parts)


def ended(name: str, status: JobStatus, generation: int) -> tuple[ExitCode, str] | None:
    """Ending of a job; None while it goes on."""
    if status.holds(ConditionType.COMPLETE):
        audit = f": {status.audit.message}" if status.audit and status.audit.message else ""
        return ExitCode.DONE, f"{name} is complete{audit}"
    failed, accepted = status.condition(ConditionType.FAILED), status.condition(ConditionType.ACCEPTED)
    if failed is not None and failed.status == "True":
        code = ExitCode.DATA if failed.reason == FailedReason.SOURCES_REFUSED else ExitCode.INFRA
        return code, f"{name} failed: {failed.reason}: {failed.message}"
    if accepted is not None and accepted.status == "False" and accepted.observed_generation >= generation:
        return ExitCode.CONFIG, f"{name} is refused: {accepted.reason}: {accepted.message}"
    return None
