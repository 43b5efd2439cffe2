"""Pace of the synchronous loop (η = 0): routing and queue order of one round, and the streamed step, in virtual time.

    python bench/sync_pace.py [--seeds 10] [--out FILE] [--quickstart 12]

A round is 64 groups of 8 on servers with so many slots each (the decode model of `bench/order.py`); requests queue at
their server in the order in which they are sent. "Round robin" deals whole groups in admission order, as a plain loop
does. "Routed" asks the product's `routing.choose`; "longest first" sorts the groups of the round by what their rows'
answers had before, which is the group's true mean with a log-error of 0.3. "Moved": once a second requests go from
the fullest server to the emptiest by the product's `routing.evened`, where what they have is prefilled again. "Shared"
ignores what a server has in its cache. Rounds are eight batches whose rows change places by the product's own rule,
each then as "routed, longest first, moved", over the same eight batches dealt round robin. The streamed step takes
complete groups as `Feed` does (1/32 of the batch at least) while others are sampled, each part with a fixed cost of its
own. Steps of n × are a round's time before training, round robin. "At most" is what no placement or order can pass:
every slot of every server full to the end, or the longest answer alone on a server.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import resource
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from areal.clients.generation.client import SWEEP_S
from areal.clients.generation.routing import RoutedServer, choose, evened
from areal.data.order import by_rounds
from areal_trainer.feed import PARTS
from order import ALIKE, CAP, LAWS, Server, Setting

ROOT = Path(__file__).resolve().parents[1]
FLEETS = {"12 × 128": (12, 128), "4 × 32": (4, 32), "2 × 16": (2, 16)}
"""Servers × slots: all samples start at once, in 4 waves, in 16."""
SHARES = (0.35, 0.43, 0.7, 1.0, 1.5)
"""Seconds of training over those of generation."""
ERROR = 0.3  # of a row's history, in log-length
POOR_ERROR = 0.8
ROUNDS = 8  # batches whose rows change places
BEGIN, END = "<!-- sync: pace -->\n", "<!-- sync: end -->"
PART_S, UPDATE_S = 1.0, 5.0  # fixed, of each part's passes and reduction; of the optimizer's step
POLL_S = 0.1  # how often the trainer looks


@dataclass(frozen=True)
class Round:
    """A batch that is about to be sampled."""

    lengths: np.ndarray  # [groups, samples] tokens
    expected: np.ndarray  # [groups]
    scored_after: np.ndarray  # [groups, samples] seconds

    @property
    def tokens(self) -> np.ndarray:
        """[groups], without prompts."""
        return np.asarray(self.lengths.sum(1))


def drawn(setting: Setting, error: float = ERROR) -> Round:
    random = np.random.default_rng(setting.seed)
    median, spread = LAWS[setting.law]
    shape = (setting.batch_groups, setting.group_size)
    shared, own = random.standard_normal((shape[0], 1)), random.standard_normal(shape)
    lengths = np.clip(median * np.exp(spread * (math.sqrt(ALIKE) * shared + math.sqrt(1 - ALIKE) * own)), 64, CAP)
    expected = lengths.mean(1) * np.exp(error * random.standard_normal(shape[0]))
    return Round(lengths.astype(int), expected, setting.score_s + random.exponential(setting.score_tail_s, shape))


def placed(setting: Setting, batch: Round, how: str) -> list[deque[tuple[int, int]]]:
    """The queue of each server: (group, sample), in the order of sending."""
    order = list(range(setting.batch_groups))
    if "longest first" in how:
        order.sort(key=lambda group: -batch.expected[group])
    queues: list[deque[tuple[int, int]]] = [deque() for _ in range(setting.servers)]
    for place, group in enumerate(order):
        server = f"s{place % setting.servers:03d}" if how == "round robin" else None
        for sample in range(setting.group_size):
            if how != "round robin":
                fleet = [RoutedServer(f"s{at:03d}", 0, load=len(queue)) for at, queue in enumerate(queues)]
                server = choose(fleet, 0, None if "shared" in how else server)
            assert server is not None
            queues[int(server[1:])].append((group, sample))
    return queues


@dataclass
class Serving:
    """A server with its queue. What waits there is (tokens left, number, tokens there)."""

    setting: Setting
    waiting: deque[tuple[float, int, float]]
    server: Server = field(default_factory=Server)

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.server.running)

    def fill(self) -> None:
        """Those that wait begin, as far as there are slots."""
        while self.waiting and len(self.server.running) < self.setting.slots:
            left, key, there = self.waiting.popleft()
            began = self.server.done - self.setting.prompt - there
            heapq.heappush(self.server.running, (self.server.done + left, key, None, began))
            self.server.context += began

    def until(self, now: float, ends: np.ndarray) -> None:
        """Go on to `now`, and note what ends by then."""
        self.fill()
        while self.server.running and (at := self.server.next_end(self.setting)) <= now:
            self.server.advance(self.setting, at)
            end, key, _, began = heapq.heappop(self.server.running)
            self.server.done = max(self.server.done, end)
            self.server.context -= began
            ends[divmod(key, self.setting.group_size)] = at
            self.fill()
        if self.server.running:
            self.server.advance(self.setting, now)
        else:
            self.server.at = max(self.server.at, now)

    def give(self, count: int, other: Serving) -> None:
        """So many requests go to another server, those with the fewest tokens first."""
        queued = [self.waiting.pop() for _ in range(min(count, len(self.waiting)))]
        self.server.running.sort(key=lambda one: -one[3])
        parted, kept = self.server.running[: count - len(queued)], self.server.running[count - len(queued) :]
        self.server.running = kept
        heapq.heapify(kept)
        for end, key, _, began in parted:
            self.server.context -= began
            there = self.server.done - began - self.setting.prompt
            queued.append((end - self.server.done, key, there))
        for left, key, there in queued:
            other.waiting.append((left, key, there))
            other.server.blocked_until = max(other.server.blocked_until, other.server.at) + (
                (there + self.setting.prompt) / self.setting.prefill_tokens_s if there else 0.0
            )


def complete_at(setting: Setting, batch: Round, how: str) -> np.ndarray:
    """[groups] When all samples of a group are scored."""
    ends = np.zeros_like(batch.scored_after)
    fleet = [
        Serving(setting, deque((batch.lengths[at], at[0] * setting.group_size + at[1], 0.0) for at in queue))
        for queue in placed(setting, batch, how)
    ]
    if "moved" not in how:
        for serving in fleet:
            serving.until(math.inf, ends)
        return np.asarray((ends + batch.scored_after).max(1))
    now = 0.0
    while any(serving.load for serving in fleet):
        for serving in fleet:
            serving.until(now, ends)
        loads = {f"s{at:03d}": serving.load for at, serving in enumerate(fleet)}
        if found := evened([RoutedServer(name, 0, load=load) for name, load in loads.items()], loads, 0.0):
            full, empty, count = found
            fleet[int(full[1:])].give(count, fleet[int(empty[1:])])
        now += SWEEP_S
    return np.asarray((ends + batch.scored_after).max(1))


def least_s(setting: Setting, batch: Round) -> float:
    """Seconds that a round takes at least, wherever its answers are made and in whatever order."""
    lengths = batch.lengths.astype(float)
    context = setting.context_s * lengths * (setting.prompt + lengths / 2)
    shared = lengths * (setting.step_s / setting.slots + setting.sequence_s) + context  # of a full server
    alone = lengths * (setting.step_s + setting.sequence_s) + context
    work = float(shared.sum()) / setting.servers + float(batch.scored_after.min())
    return max(work, float((alone + batch.scored_after).max()))


def plain(complete: np.ndarray, work: np.ndarray) -> float:
    """End of a step that waits for its batch. `work` is seconds of training by group."""
    return float(complete.max() + work.sum() + PART_S + UPDATE_S)


def streamed(complete: np.ndarray, work: np.ndarray, parts: int = PARTS) -> tuple[float, int]:
    """End of a step that takes groups as they come; and groups that were begun before the batch was whole."""
    left, now, begun = set(range(len(complete))), 0.0, 0
    least, whole = max(1, len(complete) // parts), float(complete.max())
    while left:
        ready = [group for group in left if complete[group] <= now]
        if now < whole and len(ready) < least:
            rest = sorted(float(complete[group]) for group in left)
            now = max(now, min(whole, rest[min(least, len(rest)) - 1])) + POLL_S
            continue
        begun += len(ready) if now < whole else 0
        now += float(work[ready].sum()) + PART_S
        left.difference_update(ready)
    return now + UPDATE_S, begun


def in_rounds(setting: Setting, error: float) -> float:
    """Pace of eight batches in rounds by history over the plain loop's."""
    window = drawn(replace(setting, batch_groups=ROUNDS * setting.batch_groups), error)
    places = by_rounds(window.expected, setting.batch_groups, setting.seed)

    def seconds(order: Sequence[int], how: str) -> float:
        firsts = range(0, len(order), setting.batch_groups)
        parts = [list(order[first : first + setting.batch_groups]) for first in firsts]
        rounds = [Round(window.lengths[p], window.expected[p], window.scored_after[p]) for p in parts]
        return sum(float(complete_at(setting, each, how).max()) for each in rounds)

    return seconds(range(len(places)), "round robin") / seconds(places, "routed, longest first, moved")


def measured(law: str, fleet: str, seeds: Sequence[int]) -> dict[str, object]:
    """Means over the seeds of what each way takes, over the plain loop's."""
    servers, slots = FLEETS[fleet]
    setting = Setting(law, 0, 0, servers=servers, slots=slots)
    ways = (
        "round robin", "routed", "routed, longest first", "routed, longest first, moved", "shared",
        "shared, longest first",
    )  # fmt: skip
    pace: dict[str, list[float]] = {way: [] for way in ways}
    steps: dict[str, list[tuple[float, float, float]]] = {f"{share:g}": [] for share in SHARES}
    base, most = [], []
    rounds = {
        f"{error:g}": [in_rounds(replace(setting, seed=seed), error) for seed in seeds] for error in (ERROR, POOR_ERROR)
    }
    for seed in seeds:
        batch = drawn(replace(setting, seed=seed))
        times = {way: complete_at(setting, batch, way) for way in ways}
        base.append(float(times["round robin"].max()))
        most.append(base[-1] / least_s(setting, batch))
        for way in ways:
            pace[way].append(base[-1] / float(times[way].max()))
        for share in SHARES:
            work = batch.tokens / batch.tokens.sum() * share * base[-1]
            whole, ours = times["round robin"], times["routed, longest first, moved"]
            (parts, begun), (both, _) = streamed(whole, work), streamed(ours, work)
            before = plain(whole, work)
            steps[f"{share:g}"].append((before / parts, before / both, begun / len(work)))
    return {
        "law": law, "fleet": fleet, "dropped": dropped(setting, seeds),
        "samples_over_slots": 512 / servers / slots, "round_s": float(np.mean(base)),
        "at_most": float(np.mean(most)),
        "generation": {way: float(np.mean(found)) for way, found in pace.items()},
        "rounds": {error: float(np.mean(found)) for error, found in rounds.items()},
        "spread": {way: float(np.std(found) / math.sqrt(len(seeds))) for way, found in pace.items()},
        "streamed": {share: float(np.mean([one[0] for one in found])) for share, found in steps.items()},
        "both": {share: float(np.mean([one[1] for one in found])) for share, found in steps.items()},
        "begun": {share: float(np.mean([one[2] for one in found])) for share, found in steps.items()},
    }  # fmt: skip


def quickstart(steps: int) -> list[dict[str, object]]:
    """The quickstart at η = 0, plain and streamed in turn: seconds a step from the third on, CPU seconds of roles."""
    told: list[dict[str, object]] = []
    for turn in range(4):
        home = ROOT / "runs" / f"sync-pace-{turn}"
        shutil.rmtree(home, ignore_errors=True)
        own = [] if turn % 2 else [f"trainer.hooks={ROOT / 'bench' / 'whole_batches.py'}"]
        fields = ["algorithm.maxStaleness=0", f"algorithm.maxSteps={steps}", "evaluation.rows=20", *own]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [str(ROOT / ".venv/bin/areal"), "run", "examples/quickstart.yaml", "--run-dir", str(home), *fields]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]
        told.append({
            "loop": "streamed" if turn % 2 else "plain",
            "step_s": float(np.median([row["wall_s"] for row in rows[2:]])),
            "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "begun": float(np.mean([row["groups_begun"] / row["groups"] for row in rows])),
            "reward": [row["reward_mean"] for row in rows],
            "load": os.getloadavg()[1],
        })  # fmt: skip
        print(told[-1], flush=True)
    return told


def dropped(setting: Setting, seeds: Sequence[int]) -> float:
    """Mean length of what is trained over the policy's own, where the first 64 of 80 groups are taken: not built."""
    found = []
    more = replace(setting, batch_groups=setting.batch_groups * 5 // 4)
    for seed in seeds:
        batch = drawn(replace(more, seed=seed))
        first = np.argsort(complete_at(more, batch, "shared"))[: setting.batch_groups]
        found.append(batch.lengths[first].mean() / batch.lengths.mean())
    return float(np.mean(found))


def table(told: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the page."""
    yield (
        "| lengths, servers × slots | at most | routed | longest first | and moved | rounds | rounds, poor history "
        "| streamed, T/G = "
        + " | ".join([f"{SHARES[0]:g}", *(f"{share:g}" for share in SHARES[1:])])
        + " | both, 0.43 | trained length if 16 of 80 were dropped |"
    )
    yield "|---" * (9 + len(SHARES)) + "|"
    for row in told["rows"]:
        made = row["generation"]
        cells = [
            row["at_most"],
            made["routed"],
            made["routed, longest first"],
            made["routed, longest first, moved"],
            *row["rounds"].values(),
            *row["streamed"].values(),
            row["both"]["0.43"],
        ]
        shown = " | ".join(f"{cell:.2f}" for cell in [*cells, row["dropped"]])
        yield f"| {row['law']}, {row['fleet']}: {row['round_s']:.0f} s a round | {shown} |"
    runs = told["quickstart"]
    for loop in ("plain", "streamed"):
        mine = [run for run in runs if run["loop"] == loop]
        if mine and loop == "plain":
            yield ""
            yield "The quickstart at η = 0 on two cores that both sides share, each loop in turn:"
        if mine:
            steps = ", ".join(f"{run['step_s']:.1f} s a step and {run['cpu_s']:.0f} CPU seconds in all" for run in mine)
            begun = sum(run["begun"] for run in mine) / len(mine)
            load = ", ".join(f"{run['load']:.0f}" for run in mine)
            yield f"{loop} {steps} ({begun:.0%} of the groups begun before the batch was whole; load {load})."


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seeds", type=int, default=10)
    asked.add_argument("--out", type=Path, default=Path("docs/sync_pace.json"))
    asked.add_argument("--quickstart", type=int, default=0, metavar="STEPS", help="run it, too: a few minutes")
    options = asked.parse_args()
    rows = [measured(law, fleet, range(options.seeds)) for law in LAWS for fleet in FLEETS]
    for row in rows:
        print(f"{row['law']}, {row['fleet']} slots: a round takes {row['round_s']:.0f} s round robin")
        for name in ("generation", "rounds", "streamed", "both", "begun"):
            told = row[name]
            assert isinstance(told, dict)
            print(f"  {name}: " + ", ".join(f"{key} {value:.2f}" for key, value in told.items()), flush=True)
    earlier = json.loads(options.out.read_text()) if options.out.exists() else {}
    runs = quickstart(options.quickstart) if options.quickstart else earlier.get("quickstart", [])
    told = {"setting": asdict(Setting("light", 0, 0)), "seeds": options.seeds, "part_s": PART_S, "rows": rows}
    told["quickstart"] = runs
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    page = (ROOT / "docs" / "asynchrony.md").read_text()
    head, _, rest = page.partition(BEGIN)
    (ROOT / "docs" / "asynchrony.md").write_text(
        head + BEGIN + "\n".join(table(told)) + "\n" + END + rest.partition(END)[2]
    )


if __name__ == "__main__":
    main()
