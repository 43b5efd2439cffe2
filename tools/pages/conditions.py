"""Generator of docs/conditions.md from the words of the status, so that the page says what the operator does."""

from __future__ import annotations

from collections.abc import Iterable

from areal.spec.status import REASONS, ConditionType, Summary

_HEAD = """# Conditions of a job on a cluster

`kubectl get rljob` shows one word for a job, `kubectl describe rljob NAME` its conditions. The conditions are the
truth: each has a status (True, False or Unknown), a reason in one word and a message with the particulars. Programs
should wait for conditions, not for the word: `kubectl wait --for=condition=Complete rljob/NAME --timeout=24h`.

`Complete` and `Failed` are final: a job that ended stays as it is, whatever is deleted around it. To run it again, make
a new job. This page is made from the code: `make docs`.

## In one word

STATUS of `kubectl get`, made from the conditions:
"""


def render() -> str:
    """The whole page."""
    parts = [_HEAD, _table(("status", "meaning"), ((f"`{word}`", str(word.__doc__)) for word in Summary))]
    parts.append(
        "## Conditions\n\nIn the order of a job's life. The status beside a reason is the one that comes with it.\n"
    )
    for kind in ConditionType:
        parts.append(f"### {kind}\n\n{kind.__doc__}\n")
        rows = ((f"`{reason}`", reason.when, str(reason.__doc__)) for reason in REASONS[kind])
        parts.append(_table(("reason", "status", "meaning"), rows))
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
