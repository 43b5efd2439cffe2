"""The recovery benchmark's own parts: what counts as a stamp, the schedule, the forwarder, the figures and tables."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))
import chaos
import chaos_faults
from chaos_watch import Quiet, Sight, Step, Watch, effective_time, paces, recovery

from tools.pages import recovery as page

BEFORE = [Step(100.0 + 0.5 * step, step, 1, 0.4) for step in range(21)]  # the last at 110
PACE = [Step(118.0 + 0.5 * more, 21 + more, 1, 0.4) for more in range(8)]


def test_stamps_of_a_kill_are_read_in_their_order() -> None:
    seen = [
        Sight(109.0, "reward-custom", "serving custom on port 1"),  # of before
        Sight(110.2, "worker-0", "info scoring failed, trying again"),
        Sight(110.3, "episodes", "10"),  # scored before
        Sight(112.0, "reward-custom", "════ start 2 of reward-custom, after: killed by SIGKILL ════"),
        Sight(115.0, "reward-custom", "serving custom on port 1"),
        Sight(117.0, "episodes", "20"),
    ]
    ready = [Step(110.5, 21, 1)]  # from groups that were complete
    steps = [*BEFORE, *ready, *(Step(one.at, one.step + 1, 1) for one in PACE)]
    told = recovery("reward", seen, steps, 110.1)
    assert (told.detected, told.replaced, told.useful) == (0.1, 4.9, 6.9)
    assert told.old_step == pytest.approx(7.9)
    assert told.old_pace == pytest.approx(8.4)  # the first four steps that together took no longer than before
    assert told.pause == pytest.approx(7.5)


def test_without_the_new_process_nothing_is_useful() -> None:
    seen = [Sight(110.2, "worker-0", "scoring failed"), Sight(112.0, "episodes", "20")]
    told = recovery("reward", seen, [*BEFORE, *PACE], 110.1)
    assert told.detected == 0.1
    assert (told.replaced, told.useful, told.old_step, told.whole) == (None, None, None, False)


def test_steps_that_are_trained_again_are_no_new_ones() -> None:
    again = [Step(120.0 + 0.5 * more, 18 + more, 2) for more in range(8)]  # from the checkpoint at 18
    seen = [Sight(119.0, "controller", "trainer f2 attached at step 18")]
    told = recovery("trainer", seen, [*BEFORE, *again], 110.1)
    assert told.useful == pytest.approx(9.9)
    assert told.old_step == told.old_pace == pytest.approx(11.4)  # step 21


def test_a_stop_is_over_when_the_same_process_works_again() -> None:
    seen = [Sight(111.5, "why", "role-stopped redis"), Sight(112.0, "store", "5"), Sight(116.0, "store", "9")]
    told = recovery("redis", seen, [*BEFORE, *PACE], 110.1, ended=115.1)
    assert (told.detected, told.replaced, told.useful) == (1.4, None, 5.9)
    assert told.old_step == pytest.approx(7.9)


def test_a_slower_pace_is_not_the_old_one() -> None:
    slow = [Step(112.0 + 0.7 * more, 21 + more, 1) for more in range(8)]
    new, back, _ = paces([*BEFORE, *slow], 110.1, 110.1)
    assert new == pytest.approx(1.9)
    assert back is None


def test_effective_time_counts_a_step_once_and_waiting_not_at_all() -> None:
    twice = [Step(110.5, 21, 1, 0.5), Step(114.0, 21, 2, 3.0), Step(115.0, 22, 2, 1.0)]
    at_pace, own, steps = effective_time([*BEFORE, *twice], 110.0, 120.0, 0.5)
    assert (at_pace, own, steps) == (pytest.approx(0.1), pytest.approx(0.4), 2)
    quiet = Quiet(far_s=5.0, faults=[110.2])
    quiet.add([*BEFORE, *twice, Step(116.0, 23, 2), Step(117.0, 24, 2)])
    assert (quiet.steps, quiet.seconds) == (21, pytest.approx(11.0))


def test_the_watch_sees_what_is_appended_and_cut(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    log, metrics = tmp_path / "logs" / "redis.log", tmp_path / "metrics.jsonl"
    log.write_text("before\n")

    def row(step: int, fence: int) -> str:
        return json.dumps({"at": 1.0 * step + fence, "step": step, "fence": fence, "wall_s": 0.5}) + "\n"

    metrics.write_text(row(0, 1) + row(1, 1))
    watch = Watch(tmp_path)
    watch.start()
    seen = threading.Event()

    def until(ready) -> None:
        for _ in range(500):
            if ready() or seen.wait(0.01):
                return

    until(lambda: len(watch.steps()) == 2)
    with log.open("a") as file:
        file.write("Ready to accept connections\nhalf")
    metrics.write_text(row(1, 2))
    until(lambda: len(watch.steps()) == 3 and watch.seen())
    watch.close()
    assert [one.text for one in watch.seen()] == ["Ready to accept connections"]
    assert [(one.step, one.fence) for one in watch.steps()] == [(0, 1), (1, 1), (1, 2)]


def test_a_schedule_leaves_out_what_is_done_and_spreads_roles_over_jobs() -> None:
    cells = chaos.cells(["kill", "partition"], ["redis", "engine"])
    assert [(one.kind, one.role) for one in cells] == [("kill", "redis"), ("kill", "engine"), ("partition", "redis")]
    done = Counter({chaos.Cell("kill", "redis"): 6})
    jobs = chaos.schedule("kill", cells, 8, done, 0)
    assert jobs == chaos.schedule("kill", cells, 8, done, 0)
    assert Counter(one.role for job in jobs for one in job) == {"redis": 2, "engine": 8}
    assert max(Counter(one.role for one in job)["engine"] for job in jobs) == chaos.KILLS_A_JOB


def test_a_cut_edge_holds_bytes_and_connections_until_it_is_mended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        ends = {name: f"127.0.0.1:{server.getsockname()[1]}" for name in ("controller", "redis", "reward_custom")}
        (tmp_path / "edges.targets").write_text(json.dumps(ends))
        forwarder = chaos_faults.Forwarder(tmp_path / "edges.json")
        ports = json.loads((tmp_path / "edges.json").read_text())
        try:
            with socket.create_connection(("127.0.0.1", ports["trainer"]["redis"]), 10) as near:
                far, _ = server.accept()
                with far:
                    near.sendall(b"a")
                    assert far.recv(1) == b"a"
                    with chaos_faults.partition(forwarder, "redis"):
                        near.sendall(b"b")
                        far.settimeout(0.2)
                        with pytest.raises(TimeoutError):
                            far.recv(1)
                    far.settimeout(10)
                    assert far.recv(1) == b"b"
        finally:
            forwarder.close()


@pytest.mark.parametrize(
    ("what", "name", "content"),
    [("journal", "journal/controller.jsonl", b'{"a":1}\n{"b":2}\n'),
     ("store", "redis/appendonlydir/x.incr.aof", b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n")],
)  # fmt: skip
def test_only_the_last_record_is_torn(what: str, name: str, content: bytes, tmp_path: Path) -> None:
    class Run:
        run_dir = tmp_path

    path = tmp_path / name
    path.parent.mkdir(parents=True)
    begin = content.index(b'{"b"') if what == "journal" else content.index(b"*2")
    lengths = set()
    for seed in range(40):
        path.write_bytes(content)
        chaos_faults.tear(Run(), what, random.Random(seed))  # type: ignore[arg-type]
        left = path.read_bytes()
        assert content.startswith(left)
        lengths.add(len(left) - begin)
    assert min(lengths) >= 1
    assert max(lengths) < len(content) - begin
    assert len(lengths) > 5


def test_the_median_has_an_interval_from_six_values_on() -> None:
    assert page.interval([1.0] * 5) is None
    assert page.interval([6, 5, 4, 3, 2, 1]) == (1, 6)
    assert page.interval(list(range(1, 101))) == (40, 61)
    assert page.middle([3, 1, 2, 10]) == 2.5


def test_the_table_says_n_the_worst_and_what_was_not_seen() -> None:
    row = {"kind": "stop5", "role": "redis", "load": 1.0, "step_s": 0.5, "date": "2026-01-31T00:00:00", "lasted": 5.0}
    stamps = {"replaced": None, "useful": 5.25, "old_step": 6.0, "pause": 5.5}
    rows = [
        {**row, **stamps, "detected": 1.5, "old_pace": 7.0},
        {**row, **stamps, "detected": 5.5, "old_pace": None},  # said when it was over
        {"kind": "job", "faults": 2, "trained": 64, "problems": [], "oldest": 2}
        | dict.fromkeys(("lost", "duplicated", "healed"), 0),
    ]  # fmt: skip
    text = page.block(page.condensed(rows))
    assert "2 faults and moments without one in 1 jobs, 64 groups trained" in text
    assert "0 lost, 0 duplicated, 0 problems" in text
    assert (
        "| Redis | 2 | 1.5 / 1.5, 1 not seen | – | 0.2 / 0.2 | 1.0 / 1.0 | 2.0 / 2.0, 1 not seen | 5.5 / 5.5 " in text
    )
    assert "| 1 of 2 | 2 of 2 |" in text


def test_a_measurement_is_added_to_the_figures_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures, written = tmp_path / "recovery.json", tmp_path / "recovery.md"
    figures.write_bytes(page.FIGURES.read_bytes())
    written.write_bytes(page.PAGE.read_bytes())
    monkeypatch.setattr(page, "FIGURES", figures)
    monkeypatch.setattr(page, "PAGE", written)
    monkeypatch.setattr(page, "render", lambda: written.read_text())
    old = json.loads(figures.read_text())
    row = {
        "kind": "kill", "role": chaos.STANDBY, "load": 1.0, "step_s": 0.5, "date": "2030-01-31T00:00:00",
        "lasted": None, "detected": 0.2, "replaced": 1.5, "useful": 2.0, "old_step": 2.5, "old_pace": 3.0, "pause": 2.0,
    }  # fmt: skip
    job = {
        "kind": "job",
        "faults": 1,
        "trained": 64,
        "problems": [],
        "lost": 0,
        "duplicated": 0,
        "healed": 0,
        "oldest": 1,
    }
    page.add([row, job])
    new = json.loads(figures.read_text())
    assert [cell for cell in new["cells"] if cell["role"] != chaos.STANDBY] == [
        cell for cell in old["cells"] if cell["role"] != chaos.STANDBY
    ]
    was, mine = (
        next(cell for cell in told["cells"] if cell["role"] == chaos.STANDBY and not cell["busy"])
        for told in (old, new)
    )
    assert (mine["n"], mine["old_step"]) == (was["n"] + 1, sorted([*was["old_step"], 2.5]))
    assert mine["step_s"] == pytest.approx((was["step_s"] * was["n"] + 0.5) / mine["n"], abs=1e-3)
    assert mine["load"] == [min(1.0, was["load"][0]), max(1.0, was["load"][1])]
    assert page.counted()["kill", chaos.STANDBY] == was["n"] + 1
    assert new["audits"]["trained"] == old["audits"]["trained"] + 64
    assert (new["audits"]["oldest"], new["floors"], new["date"]) == (2, old["floors"], "2030-01-31")
    assert new["ettr"] == old["ettr"]


def test_the_page_shows_the_committed_figures() -> None:
    assert page.PAGE.read_text() == page.render()
    figures = json.loads(page.FIGURES.read_text())
    assert figures["audits"]["lost"] == figures["audits"]["duplicated"] == figures["audits"]["problems"] == 0
    assert figures == json.loads(page.lines(figures))
