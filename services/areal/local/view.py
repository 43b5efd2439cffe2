"""The live view of a run in a terminal, and its one-line form for logs and pipes. Pure: a `RunView` in, text out."""

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from areal.errors import Cause
from areal.local.status import RunView
from areal.observe.live import IdleCause, Live, LiveRole, RolloutFlow
from areal.processes.core import ChildPhase
from areal.record.episode_ends import infra_share, wasted_share, wasted_text
from areal.record.run_rows import Step, best_of

_FLAT = "all groups of a step earned the same, so no sample is better than another"
_FLAT_FIX = "use easier or harder tasks, a graded reward, or larger groups (algorithm.groupSize)"
_NOT_FINITE = "every gradient was not finite"
_NOT_FINITE_FIX = "lower the learning rate, or look for what a hook or a row makes infinite"
_STEPS_WITHOUT = 3  # a chance of an unlucky step or two is no news

_BARS = "▁▂▃▄▅▆▇█"
_COLOURS: dict[str, str] = {
    ChildPhase.READY: "green", ChildPhase.COMPLETE: "green", ChildPhase.STARTING: "yellow", ChildPhase.IDLE: "dim",
    ChildPhase.BACKING_OFF: "red", ChildPhase.FAILED: "bold red", ChildPhase.DRAINING: "yellow",
    ChildPhase.STOPPED: "dim",
}  # fmt: skip


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """`values` as a row of bars, the newest at the right. More values than `width` are averaged in equal parts."""
    if not values:
        return ""
    if len(values) > width:
        cuts = [round(part * len(values) / width) for part in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(values), max(values)
    if high - low < 1e-9:
        return _BARS[3] * len(values)
    return "".join(_BARS[min(7, int((value - low) / (high - low) * 8))] for value in values)


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""


def held_out(view: RunView) -> str:
    """`0.656 → 0.912 (v160)`, and the best where that is another one."""
    if not view.held_out:
        return "—"
    first, last = view.held_out[0], view.held_out[-1]
    best = best_of(view.held_out)
    text = f"{first.mean:.3f}" if first is last else f"{first.mean:.3f} → {last.mean:.3f}"
    text += f" (v{last.version})"
    return text if best.mean == last.mean else f"{text}, best {best.mean:.3f} (v{best.version})"


def what_it_does(role: LiveRole) -> str:
    """A role's wait, or its work, in words."""
    if role.phase in (ChildPhase.BACKING_OFF, ChildPhase.FAILED):
        return role.reason
    if role.waits:
        oldest = role.waits[0]
        more = f" (+{len(role.waits) - 1})" if len(role.waits) > 1 else ""
        return f"waits: {oldest.waits_for}, {duration(oldest.age_s)}{more}"
    return role.doing or role.reason


def warning(view: RunView) -> str:
    """Warning of how the run learns; empty when nothing is wrong."""
    count = 0
    for step in reversed(view.steps):
        if step.updates != 0:
            break
        count += 1
    if count < _STEPS_WITHOUT:
        return ""
    groups = view.steps[-1].groups
    more = "more than " if view.earlier and count == len(view.steps) else ""
    why, fix = no_gradient(view.steps[-count:])
    return f"no gradient in {more}{count} steps: {why} ({groups} groups); {fix}"


def no_gradient(steps: Sequence[Step]) -> tuple[str, str]:
    """Why none of these steps changed the model, and what to do."""
    skipped = any(step.skipped for step in steps)
    return (_NOT_FINITE, _NOT_FINITE_FIX) if skipped else (_FLAT, _FLAT_FIX)


def restart_warnings(view: RunView) -> list[str]:
    """Roles that used half of their restarts: the next ones end the run."""
    return [f"{role.name}: {role.warning}" for role in view.live.roles if role.warning]


def trouble(live: Live) -> str:
    """What holds the run up or ended it, in the words of `areal why`; empty while nothing does."""
    return live.cause.named if live.cause is not None and live.cause.cause != Cause.NONE else ""


def line(view: RunView) -> str:
    """One line for a log."""
    live, flow = view.live, view.live.flow
    parts = [f"step {live.step}/{live.max_steps}"]
    if live.policy:
        parts.append(f"policy {live.policy}")
    if view.rewards:
        parts.append(f"reward {_recent(view.rewards):.3f}")
    if view.losses:
        parts.append(f"loss {view.losses[-1]:.4f}")
    if view.held_out:
        parts.append(f"held-out {held_out(view)}")
    if view.steps and not view.losses:
        parts.append(f"staleness {view.steps[-1].staleness_mean:.2f}")
    if live.generation_tps:
        parts.append(f"generation {rate(live.generation_tps)}")
    if view.training_tps:
        parts.append(f"training {rate(view.training_tps)}")
    if flow and flow.tombstones:
        parts.append(f"tombstones {_tombstones(flow)}")
    if flow and infra_share(flow.episode_ends):
        parts.append(f"infra faults {_infra(flow)}")
    if flow and wasted_share(flow.token_fates):
        parts.append(f"wasted tokens {wasted_text(flow.token_fates)}")
    if live.restarts:
        parts.append(f"restarts {live.restarts}")
    parts += [f"WARNING: {said}" for said in (*restart_warnings(view), warning(view)) if said]
    if said := trouble(live):
        parts.append(said)
    elif not view.steps:
        parts.append("all roles are up; no step yet")
    return f"{duration(live.elapsed_s):>6}  " + " · ".join(parts)


def render(view: RunView, note: str = "") -> RenderableType:
    """The whole picture."""
    live = view.live
    parts: list[RenderableType] = [_head(view), Text(), _figures(view), Text(), _roles(view)]
    if said := trouble(live):
        parts.append(Text(f"\n{said}", style="bold red" if live.stalled else "bold yellow"))
    elif live.idle and live.idle.cause is not IdleCause.OVER:
        parts.append(Text(f"\nadmission: {live.idle.text}", style="dim"))
    parts += [Text(f"\n{said}", style="bold yellow") for said in (*restart_warnings(view), warning(view)) if said]
    if note:
        parts.append(Text(f"\n{note}", style="bold yellow"))
    return Panel(Group(*parts), title=f"[bold]{live.name}[/]", title_align="left", border_style="dim", width=100)


def _head(view: RunView) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, view.live.max_steps), completed=view.live.step, width=40)
    ends = f"{duration(view.live.elapsed_s)} gone, {duration(view.remaining_s)} left"
    grid.add_row(Text(f"step {view.live.step}/{view.live.max_steps}", style="bold"), bar, Text(ends, style="dim"))
    return grid


def _figures(view: RunView) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", min_width=10)
    grid.add_column(min_width=30)
    grid.add_column(style="dim")
    grid.add_column()
    if view.losses:
        rows = [
            ("loss", f"{view.losses[-1]:.4f} {sparkline(view.losses, 24)}", "training", rate(view.training_tps)),
            ("held-out", held_out(view), "restarts", str(view.live.restarts)),
        ]
        for row in rows:
            grid.add_row(*row)
        return grid
    rewards, flow = view.rewards, view.live.flow
    reward = f"{_recent(rewards):.3f} {sparkline(rewards, 24)}" if rewards else "—"
    newest = view.steps[-1] if view.steps else None
    age = (
        f"{newest.staleness_mean:.2f} mean, {newest.staleness_max} max of η={view.live.max_staleness}"
        if newest
        else "—"
    )
    same = f"{newest.same_share:.0%} of groups earned the same" if newest and newest.groups else "—"
    ledger = f"{size(flow.reserved_bytes)} of {size(flow.budget_bytes)}" if flow else "—"
    groups = f"{flow.leased} leased, {flow.ready} ready" if flow else "—"
    ends = _tombstones(flow) if flow else ""
    rows = [
        ("reward", reward, "generation", rate(view.live.generation_tps)),
        ("held-out", held_out(view), "training", rate(view.training_tps)),
        ("policy", view.live.policy or "—", "groups", groups),
        ("staleness", age, "ledger", ledger),
        ("tombstones", ends or "none", "restarts", str(view.live.restarts)),
        ("signal", same, "infra", _infra(flow) if flow else "—"),
        ("wasted", wasted_text(flow.token_fates) if flow else "—", "", ""),
    ]
    for row in rows:
        grid.add_row(*row)
    return grid


def _roles(view: RunView) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for title, width in (("role", 13), ("phase", 11), ("policy", 8), ("restarts", 8)):
        table.add_column(title, no_wrap=True, min_width=width)
    table.add_column("what it does", overflow="ellipsis", no_wrap=True, ratio=1)
    for role in view.live.roles:
        phase = Text(str(role.phase), style=_COLOURS.get(role.phase, ""))
        table.add_row(role.name, phase, role.policy, str(role.restarts or ""), what_it_does(role))
    return table


def _tombstones(flow: RolloutFlow) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(flow.tombstones.items()))


def _infra(flow: RolloutFlow) -> str:
    share = infra_share(flow.episode_ends)
    return "—" if share is None else f"{share:.2%} of episodes"


def _recent(values: Sequence[float], newest: int = 5) -> float:
    recent = values[-newest:]
    return sum(recent) / len(recent)


def duration(seconds: float | None) -> str:
    """`42s`, `3m07s`, `2h05m`."""
    if seconds is None:
        return "—"
    if (whole := round(seconds)) < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def rate(value: float) -> str:
    """Tokens per second for people."""
    return f"{value / 1000:.1f}k tok/s" if value >= 1000 else f"{value:.0f} tok/s"
