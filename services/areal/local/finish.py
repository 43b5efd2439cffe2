"""Account of a run in its directory: audit, `summary.json` and the page `report.html`.

`areal run` writes it at a run's end, `areal report` again when asked, and on a cluster the tool `finish` in a pod of
its own.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_view.pages import site

from areal.errors import BugError
from areal.ledger.audit import AuditReport, audit
from areal.local.archive import copy_rest
from areal.local.kept import remove_spare
from areal.observe.live import Diagnosis
from areal.plan import ResolvedJob, RunLayout
from areal.plan.cluster_names import ENV_CLEAN
from areal.record import summary
from areal.record.episode_ends import read_counts
from areal.record.run_rows import Records

_PROBLEMS = 5  # of the audit, in the message; all are in the summary


class AuditFailed(BugError):
    """The run broke its promise. The message is the audit as JSON, for whoever asked."""


def run(resolved: ResolvedJob) -> str:
    """Account for the run in its directory; answers the audit in one line of JSON.

    Raises AuditFailed when a group was lost or used twice.
    """
    layout = resolved.layout
    records = Records(layout.metrics, layout.evaluations).refresh()
    audited = audit(resolved.run_dir)
    result = summary.make(_ending(records, audited), records, audited, ends=read_counts(layout.episode_ends))
    write(layout, result)
    said = verdict(audited)
    print(said, flush=True)
    if not audited.ok:
        raise AuditFailed(said)
    if copy_rest(resolved, lambda words: print(words, flush=True)) and os.environ.get(ENV_CLEAN):
        try:
            remove_spare(layout)
        except OSError as error:  # a file that a server still reads from a share; it takes room, the run is complete
            print(f"checkpoints and published versions stay: {error}", flush=True)
    return said


def report(run_dir: Path, end: Diagnosis | None = None) -> Path:
    """Write the page of a run again, also of one that goes on or was killed; answers where it is.

    `end` is what ended it: then the summary is written as well.
    """
    layout = RunLayout(run_dir)
    result = summary.read(layout.summary) if end is None else None
    if result is None:
        records = Records(layout.metrics, layout.evaluations).refresh()
        wall = records.steps[-1].at - records.steps[0].at if records.steps else 0.0
        ending = summary.RunEnd("Running" if end is None else "Failed", max(0.0, wall), {}, 0, end)
        result = summary.make(ending, records, audit(run_dir), ends=read_counts(layout.episode_ends))
    if end is not None:
        summary.write(layout.summary, result)
    return site.write(run_dir, result)


def write(layout: RunLayout, result: Mapping[str, Any]) -> None:
    """The summary and the page of a run that ended."""
    summary.write(layout.summary, result)
    site.write(layout.root, result)


def verdict(audited: AuditReport) -> str:
    """The audit in one line: `lost`, `duplicated`, `tombstones` by reason, `ok` and a message for people."""
    message = f"{audited.trained} groups trained in {audited.steps} steps, each exactly once"
    if not audited.ok:
        message = "; ".join(audited.problems[:_PROBLEMS])
    return json.dumps(
        {
            "lost": len(audited.lost),
            "duplicated": len(audited.duplicated),
            "tombstones": audited.tombstoned,
            "ok": audited.ok,
            "message": message,
        }
    )


def _ending(records: Records, audited: AuditReport) -> summary.RunEnd:
    """What the files tell of how the run went: nobody watched all of it."""
    steps = records.steps
    wall = steps[-1].at - steps[0].at + steps[0].seconds if steps else 0.0
    tokens = sum(step.tokens for step in steps)
    return summary.RunEnd(
        status="Complete" if audited.finished else "Stopped",
        wall_s=wall,
        restarts={"trainer": max(0, audited.trainers - 1)},
        generation_tps=tokens / wall if wall > 0 else 0.0,  # of what was trained; what was dropped isn't written down
    )
