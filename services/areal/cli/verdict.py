"""A judgement for people, for scripts, and as an exit code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from areal_judge.judge.values import CaseResult, Judgement, Status
from areal_judge.sandbox.host.tiers import promise
from rich.console import Console
from rich.table import Table
from rich.text import Text

from areal.errors import ExitCode

FAILED = 1  # the program, not us
_SHOWN = 60  # cases in the table; of more, those that failed come first
_COLOURS = {Status.PASSED: "green", Status.SKIPPED: "dim"}
_OF_ARGUMENTS = frozenset({Status.INVALID_REQUEST, Status.REJECTED_TIER})


def exit_code(judgement: Judgement) -> int:
    """0 only for PASSED; 1 when the program is at fault; else whose fault it is."""
    if judgement.status is Status.PASSED:
        return int(ExitCode.DONE)
    if judgement.score is not None:
        return FAILED
    if judgement.status is Status.GOLD_ERROR:
        return int(ExitCode.DATA)
    return int(ExitCode.CONFIG if judgement.status in _OF_ARGUMENTS else ExitCode.INFRA)


def as_json(judgement: Judgement) -> dict[str, Any]:
    """One JSON object; enumerations by their names."""
    return {
        "status": judgement.status.value,
        "score": judgement.score,
        "passed": judgement.cases_passed,
        "total": judgement.cases_total,
        "message": judgement.message,
        "tier": judgement.tier.name,
        "integrity": judgement.integrity.name,
        "flags": sorted(flag.value for flag in judgement.flags),
        "retryable": judgement.retryable,
        "suite_digest": judgement.suite_digest,
        "timing": asdict(judgement.timing),
        "compile": _case(judgement.compile) if judgement.compile else None,
        "cases": [_case(case) for case in judgement.cases],
    }


def _case(case: CaseResult) -> dict[str, Any]:
    return asdict(case) | {"status": case.status.value}


def show(judgement: Judgement, console: Console) -> None:
    """A table of the cases and what it comes to."""
    if judgement.compile is not None and judgement.compile.status is not Status.PASSED:
        console.print(Text(judgement.compile.stderr_head or judgement.compile.detail))
    elif judgement.cases:
        console.print(_table(judgement))
    verdict = Text(judgement.status.value, style=f"bold {_COLOURS.get(judgement.status, 'red')}")
    score = "no score" if judgement.score is None else f"score {judgement.score:g}"
    console.print(verdict, Text(f"{judgement.cases_passed}/{judgement.cases_total} cases, {score}"))
    if judgement.message and all(judgement.message != case.detail for case in judgement.cases):
        console.print(Text(judgement.message))
    console.print(_facts(judgement))


def _table(judgement: Judgement) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in (
        ("case", "right"),
        ("status", "left"),
        ("wall", "right"),
        ("cpu", "right"),
        ("memory", "right"),
    ):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what it did", overflow="fold")
    cases = list(judgement.cases)
    if len(cases) > _SHOWN:
        cases = sorted(cases, key=lambda case: case.status is Status.PASSED)[:_SHOWN]
    for case in cases:
        memory = f"{case.max_rss_bytes / (1 << 20):.0f} MiB" if case.max_rss_bytes else ""
        status = Text(case.status.value, style=_COLOURS.get(case.status, "red"))
        times = (f"{case.wall_s * 1e3:.1f} ms", f"{case.cpu_s * 1e3:.1f} ms")
        table.add_row(str(case.index), status, *times, memory, Text(_what(case)))
    if len(judgement.cases) > len(cases):
        table.add_row("…", f"{len(judgement.cases) - len(cases)} more", "", "", "", "")
    return table


def _what(case: CaseResult) -> str:
    if case.status in (Status.PASSED, Status.SKIPPED):
        return case.detail
    parts = [case.detail] if case.detail else _ending(case)
    if case.status is Status.WRONG_ANSWER and case.stdout_head:
        parts.append(f"printed {case.stdout_head[:200]!r}")
    return "; ".join(parts)


def _ending(case: CaseResult) -> list[str]:
    """What a process left, when nobody said it in words."""
    parts = []
    if case.exit_code:
        parts.append(f"exit code {case.exit_code}")
    if case.signal:
        parts.append(f"signal {case.signal}")
    if case.stderr_head.strip():
        parts.append(case.stderr_head.strip().splitlines()[-1][:300])
    return parts


def _facts(judgement: Judgement) -> Table:
    timing = judgement.timing
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    held = promise(judgement.tier)
    grid.add_row("tier", f"{judgement.tier.name} {held.name}")
    grid.add_row("tests", "apart from the program" if judgement.integrity else "in the program's own process")
    if judgement.flags:
        grid.add_row("flags", Text(" ".join(sorted(flag.value for flag in judgement.flags)), style="yellow"))
    stages = {"setup": timing.setup_s, "compile": timing.compile_s, "run": timing.run_s, "judge": timing.judge_s}
    spent = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in stages.items() if value)
    grid.add_row("time", f"{timing.total_s * 1e3:.1f} ms" + (f" ({spent})" if spent else ""))
    if judgement.suite_digest:
        grid.add_row("suite", judgement.suite_digest[:16])
    return grid
