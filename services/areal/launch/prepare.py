"""The tool `prepare`: dataset snapshots, and a check of the answers that the job's verifier will read.

Reading expected answers is the reward's knowledge, preparing directories the stage's; neither knows the other.
"""

from __future__ import annotations

from areal.plan import ResolvedJob
from areal.reward import preflight
from areal.stage import prepare
from areal.stage.datasets import Say


def run(resolved: ResolvedJob) -> str:
    """Prepare the run directory; answers what is in it. Raises as `areal.stage.prepare.run` does."""
    return prepare.run(resolved, look_at_answers)


def look_at_answers(resolved: ResolvedJob, say: Say) -> None:
    """Raise DataError for a row whose expected answer, or whose tests, the job's verifier could never use."""
    for split in ("train", "evaluation"):
        preflight.check_suites(resolved.job, preflight.rows_of_snapshot(resolved.layout.dataset / split, split))
    if resolved.verifier != "math":
        return
    if not preflight.installed():
        say("expected answers weren't read: math-verify isn't installed here")
        return
    for split in ("train", "evaluation"):
        directory = resolved.layout.dataset / split
        if not directory.exists():
            continue
        looked = preflight.check_snapshot(directory, resolved.spec.reward.answer_field)
        if looked.left:
            say(
                f"dataset {split}: {looked.left} of {looked.left + looked.read} different answers were not read in time"
            )
