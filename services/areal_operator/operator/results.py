"""Audit of a finished run, read from the termination message of the Job that finishes. Pure."""

from __future__ import annotations

import json

from areal.plan.cluster_names import Role
from areal.spec.status import AuditStatus
from pydantic import ValidationError

from areal_operator.operator.observed import Observed


def audit_of(seen: Observed) -> AuditStatus | None:
    """The newest audit that a finishing pod wrote; None when none did, or it can't be read."""
    endings = [pod.ending for pod in seen.of(Role.FINISH) if pod.ending is not None and pod.ending.message]
    for ending in sorted(endings, key=lambda ending: ending.at, reverse=True):
        try:
            return AuditStatus.model_validate(json.loads(ending.message), by_alias=True, by_name=False)
        except (ValueError, ValidationError):
            continue
    return None
