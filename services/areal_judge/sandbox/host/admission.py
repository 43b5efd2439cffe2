"""Run admission: the runs that a machine's capabilities allow, decided before anything starts. Pure.

Pure.
"""

from __future__ import annotations

from areal.errors import ConfigError

from areal_judge.sandbox.values import ImageCommand, Powers, ProgramRun


class SandboxRefusalError(ConfigError):
    """This machine's tier can't run what was asked."""


def check(run: ProgramRun, powers: Powers) -> None:
    """Raises SandboxRefusalError for a run that these powers can't run, or that names files where none may be."""
    needs = []
    if run.limits.processes > 1 and not powers.fork:
        needs.append(f"{run.limits.processes} processes")
    if isinstance(run.entry, ImageCommand) and not powers.execute:
        needs.append("to execute programs")
    if (run.files or run.keep) and not powers.scratch:
        needs.append("a scratch directory for its files")
    if needs:
        raise SandboxRefusalError(
            f"the run needs {' and '.join(needs)}; sandbox tier {powers.tier.name} offers none",
            fix="run it where T3 is available: namespaces (root or user namespaces) allowed to the reward service",
        )
    size = sum(len(data) for data in run.files.values())
    if size > run.limits.disk_bytes or len(run.files) > run.limits.inodes:
        raise SandboxRefusalError("the run's files are larger than its disk limit", fix="raise limits.disk_bytes")
    for path in (*run.files, *run.keep):
        if not path or path.startswith("/") or any(part in ("", ".", "..") for part in path.split("/")):
            raise SandboxRefusalError(f"{path!r} is no plain relative path", fix="name files below the scratch")
