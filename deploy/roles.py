"""The table of roles in docs/architecture.md, made from `plan.role_specs`. Pure."""

from __future__ import annotations

from areal.plan.role_specs import ROLE_SPECS, RoleProgram, RoleSpec

BEGIN, END = "<!-- roles: begin -->\n", "<!-- roles: end -->"
_HEAD = ("role", "what it does", "program", "in pods", "ports", "called by", "reads and writes of the run directory")


def page(old: str) -> str:
    """The page with a fresh table between its two marks."""
    head, _, rest = old.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table()}{END}{tail}"


def table() -> str:
    """A line for each role, in the order in which a job needs them."""
    lines = [_HEAD, ("---",) * len(_HEAD), *(_line(row) for row in ROLE_SPECS.values())]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _line(row: RoleSpec) -> tuple[str, ...]:
    program = row.entry.partition(":")[0] if row.program is RoleProgram.AREAL_ROLE else row.program
    callers = dict.fromkeys(f"{caller.who}" for caller in row.called_by)
    parts = [f"{_place(part.path.name)}{'' if part.writable else ' (reads)'}" for part in row.run_parts]
    return (
        f"`{row.role}`", row.what, f"`{program}`", row.workload, ", ".join(row.ports) or "–",
        ", ".join(callers) or "–", ", ".join(parts) or "–",
    )  # fmt: skip


def _place(name: str) -> str:
    return "all" if name == "run" else f"`{name}/`"
