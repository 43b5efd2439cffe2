"""A summary of a run that trained nothing, with fields of a test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal.ledger.audit import AuditReport
from areal.record import summary
from areal.record.run_rows import Records

NOWHERE = Path("/nonexistent")


def run_summary(**fields: Any) -> dict[str, Any]:
    """As `areal run` would write it."""
    made = summary.make(summary.RunEnd("Complete", 0.0, {}, 0.0), Records(NOWHERE, NOWHERE), AuditReport())
    return {**made, **fields}
