"""The page: its figures are those of the recording, hostile text is text, every link leads somewhere."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from areal.observe.live import Live, LiveRole, write_live
from areal_view.pages.app import changes
from areal_view.pages.runs import ShownRun
from starlette.testclient import TestClient
from support.recorded_run import RecordedRun, made_sample, sample_frame
from support.view_words import HOSTILE

CELLS = 1_000


def cells(text: str) -> list[str]:
    """What the cells of a page's tables say."""
    found = re.findall(r"<td[^>]*>(.*?)</td>", text, re.S)
    return [unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in found]


def test_every_link_resolves(page: TestClient):
    seen, ahead = set(), ["/"]
    while ahead:
        path = ahead.pop()
        if path in seen:
            continue
        seen.add(path)
        answer = page.get(path)
        beyond = path.endswith("/steps/4")  # the link to the next step, which isn't there yet
        assert answer.status_code == (404 if beyond else 200), path
        if "text/html" in answer.headers["content-type"]:
            links = re.findall(r'(?:href|src|hx-get|data-chart|data-tokens)="([^"]+)"', answer.text)
            ahead += [str(answer.url.join(unescape(link)).raw_path, "ascii") for link in links]
    assert {path.split("?")[0] for path in seen} >= {"/r/digits", "/r/digits/steps/3", "/r/digits/groups/11"}
    assert any("/tokens/0" in path for path in seen)
    assert any("/evals/2.f1-ab/" in path for path in seen)


def test_evaluations_show_sampled_answers_and_each_set(page: TestClient):
    shown = page.get("/r/digits/evals").text
    for words in ("avg@4", "pass@4", "0.250", "0.750", "&lt;hard&gt;", "0.125"):
        assert words in shown
    (told,) = page.get("/r/digits/evals?format=json").json()["lines"]
    assert told["figures"] == {"avg@4": 0.25, "pass@4": 0.75}
    assert page.get("/r/digits/evals/2.f1-ab/0.1").status_code == 404


def test_random_cells_equal_the_recording(page: TestClient, recorded: RecordedRun):
    chance = random.Random(3)
    for _ in range(CELLS):
        (group, index), made = chance.choice(list(recorded.samples.items()))
        what = chance.choice(["group", "sample", "step", "token"])
        if what == "group":
            told = page.get(f"/r/digits/groups/{group}?format=json").json()
            assert told["answers"][index]["row"]["reward"] == made.reward
            assert told["answers"][index]["is_the_trained_one"]
        elif what == "sample":
            text = page.get(f"/r/digits/samples/{group}.{index}").text
            colour = " good" if made.reward else ""
            assert f'<span class="reward{colour}">{made.reward:.3f}</span>' in text
            assert "trained as recorded" in text
        elif what == "step":
            step = group // recorded.batch
            rewards = [recorded.samples[group, i].reward for i in range(recorded.size)]
            row = next(row for row in _rows(page.get(f"/r/digits/steps/{step}").text) if row[:1] == [str(group)])
            assert row[1:5] == ["2", *(f"{v:.3f}" for v in (np.mean(rewards), min(rewards), max(rewards)))]
        else:
            told = page.get(f"/r/digits/samples/{group}.{index}/tokens/0").json()
            place = chance.randrange(len(told["ids"]))
            sequence, computed = made.sample.sequences[0], recorded.tokens[group, index]
            sampled = np.frombuffer(sequence.logprobs, "<f4")[place]
            assert told["sampled"][place] == sampled
            if computed["flags"][place]:
                assert told["trained"][place] == computed["logprobs"][place]
                assert told["advantage"][place] == computed["advantages"][place]
                assert told["ratio"][place] == pytest.approx(np.exp(computed["logprobs"][place] - sampled), rel=1e-5)
            else:
                assert told["trained"][place] is None


def _rows(text: str) -> list[list[str]]:
    return [cells(row) for row in re.findall(r"<tr>(.*?)</tr>", text, re.S)]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_shown_as_text(page: TestClient, recorded: RecordedRun, hostile: bytes):
    made = made_sample(500, 0, letters="abcdef")
    made.texts[0].text = b"abc" + hostile
    made.texts[0].token_ends = np.array([1, 2, 3, 3 + len(hostile)], "<u4").tobytes()
    made.sample.verdict.detail = hostile.decode("utf-8", "replace")
    made.fault.message = made.sample.verdict.detail
    made.outcome = "exception"
    recorded.append("trajectories", "worker-9-1-000000", sample_frame(made))
    for path in ("samples/500.0", "groups/500", "search?outcome=exception"):
        answer = page.get(f"/r/digits/{path}")
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text
        assert not set(answer.text) & {"\x1b", "\u202e", "\u2066", "\x00", "\u200b"}


def test_a_recording_that_does_not_fit_together_breaks_no_page(page: TestClient, recorded: RecordedRun):
    made = made_sample(600, 0, letters="abcdef")
    made.texts[0].token_ends = np.array([9, 2, 2**31, 1], "<u4").tobytes()
    odd = made_sample(601, 0, letters="abcdef")
    odd.sample.sequences[0].logprobs = b"\0" * 3
    odd.sample.sequences[0].spans[0].end = 2**31
    odd.sample.sequences[0].spans[0].policy_id = "no policy"
    none = made_sample(602, 0, letters="abcdef")
    del none.texts[:]
    recorded.append("trajectories", "worker-9-1-000000", *(sample_frame(one) for one in (made, odd, none)))
    for group in (600, 601, 602):
        for path in (f"groups/{group}", f"samples/{group}.0", f"samples/{group}.0/tokens/0"):
            assert page.get(f"/r/digits/{path}").status_code in (200, 404)


def test_a_sample_that_the_trainer_did_not_train_is_not_called_trained(page: TestClient, recorded: RecordedRun):
    forged = made_sample(0, 0, seed=9)
    segment = recorded.root / "trajectories" / "worker-0-1-000000.rec"
    segment.unlink()
    recorded.append("trajectories", "worker-0-2-000000", sample_frame(forged))
    told = page.get("/r/digits/samples/0.0").text
    assert "trained as recorded" not in told
    assert "another attempt was trained" in told
    assert "ratio" not in page.get("/r/digits/samples/0.0/tokens/0").json()


def test_a_run_whose_process_was_killed_says_so_and_keeps_its_pages(page: TestClient, recorded: RecordedRun):
    (recorded.root / "summary.json").unlink()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = psutil.Process(process.pid).create_time()
        live = Live(time.time(), process.pid, began, 4, 9, roles=[LiveRole("trainer", "ready", process.pid)])
        write_live(recorded.root / "live.json", live)
        assert page.get("/r/digits?format=json").json()["state"] == "running"
        process.kill()
        process.wait()
        told = page.get("/r/digits").text
        assert "cut off at step 4 of 9" in told
        assert "--resume" in told
    for path in ("steps/1", "groups/4", "samples/4.0", "curves?name=reward", "facts"):
        assert page.get(f"/r/digits/{path}").status_code == 200


def test_what_is_not_there_is_not_found(page: TestClient):
    for path in (
        "/r/none", "/r/none/fleet", "/r/digits/steps/99", "/r/digits/groups/999", "/r/digits/samples/0.99",
        "/r/digits/curves?name=none", "/r/digits/evals/none", f"/r/digits/groups/{2**70}", "/static/../app.py",
    ):  # fmt: skip
        assert page.get(path).status_code == 404, path
    for asked in ("low=much", "outcome=none", "order=none", "order=figures.none", "text=%2B", "after=x", "after=1"):
        assert page.get(f"/r/digits/search?{asked}").status_code == 400, asked


def test_a_step_lists_the_samples_of_a_bin(page: TestClient, recorded: RecordedRun):
    told = page.get("/r/digits/steps/1?low=1&high=1&format=json").json()
    found = {(one["group"], one["index"]) for one in told["samples"]}
    assert found == {key for key, made in recorded.samples.items() if key[0] // 3 == 1 and made.reward == 1.0}
    assert sum(one["count"] for one in told["bins"]) == recorded.batch * recorded.size


def test_samples_are_exported_whole(page: TestClient, recorded: RecordedRun):
    answer = page.get("/r/digits/samples.jsonl")
    assert "attachment" in answer.headers["content-disposition"]
    told = {(one["group"], one["index"]): one for one in map(json.loads, answer.text.splitlines())}
    assert told.keys() == recorded.samples.keys()
    for key, made in recorded.samples.items():
        (sequence,) = told[key]["sequences"]
        assert sequence["text"] == made.texts[0].text.decode()
        assert sequence["tokenIds"] == np.frombuffer(made.sample.sequences[0].token_ids, "<i4").tolist()
        assert sequence["logprobs"] == np.frombuffer(made.sample.sequences[0].logprobs, "<f4").tolist()
        assert (told[key]["reward"], sequence["spans"][0]["policy"]) == (made.reward, f"{key[0] // 3}.f1")
    best = [json.loads(line)["reward"] for line in page.get("/r/digits/samples.jsonl?low=1&high=").text.splitlines()]
    assert best == [1.0] * sum(made.reward == 1.0 for made in recorded.samples.values())


def test_samples_are_exported_in_other_forms(page: TestClient, recorded: RecordedRun):
    answer = page.get("/r/digits/samples.atif?low=1")
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert len(told) == sum(made.reward == 1.0 for made in recorded.samples.values())
    assert 'filename="digits.atif"' in answer.headers["content-disposition"]
    assert page.get("/r/digits/samples.parquet").content[:4] == b"PAR1"
    assert page.get("/r/digits/samples.exe").status_code == 404


def test_curves_hold_the_rows_of_the_metrics(page: TestClient):
    told = page.get("/r/digits/curves?name=reward").json()
    assert told["steps"] == [0, 1, 2, 3]
    assert told["lines"][0]["values"] == [0.0, 0.1, 0.2, 0.3]
    assert told["lines"][1]["values"] == [None, None, 0.5, None]


def test_a_figure_of_the_job_s_own_code_has_a_chart_and_samples_show_theirs(page: TestClient, recorded: RecordedRun):
    row = {**json.loads((recorded.root / "metrics.jsonl").read_text().splitlines()[-1]), "step": 4}
    with (recorded.root / "metrics.jsonl").open("a") as out:
        out.write(json.dumps({**row, "figures": {"format.short": 0.5}}) + "\n")
    assert "/r/digits/curves?name=figures/format.short" in page.get("/r/digits").text
    told = page.get("/r/digits/curves?name=figures/format.short").json()
    assert told["lines"] == [{"label": "format.short", "values": [None] * 4 + [0.5]}]
    made = made_sample(77, 0)
    made.sample.verdict.figures["format.short"] = 0.25
    recorded.append("trajectories", "worker-9-1-000000", sample_frame(made))
    assert "format.short 0.25" in page.get("/r/digits/groups/77").text
    exported = [json.loads(line) for line in page.get("/r/digits/samples.jsonl").text.splitlines()]
    (row,) = [one for one in exported if one["group"] == 77]
    assert row["verdict"]["figures"] == {"format.short": 0.25}


def test_the_fleet_s_time_sums_to_all_of_it(page: TestClient):
    told = page.get("/r/digits/fleet?format=json").json()
    assert (told["first_step"], told["last_step"], told["seconds"]) == (0, 3, 8.0)
    for causes in told["ledger"]["roles"].values():
        assert sum(causes.values()) == pytest.approx(8.0)
    # every recorded sample was generated from 100 s to 101.5 s and scored until 101.75 s
    assert told["ledger"]["roles"]["generation-0"]["generates"] == pytest.approx(1.5)
    assert {lane["role"]: lane["bars"][0]["what"] for lane in told["lanes"]} == {
        "trainer": "wait", "generation-0": "generates", "reward": "scores", "worker-0": "scores",
    }  # fmt: skip
    text = page.get("/r/digits/fleet").text
    assert "waits: generation" in text
    assert "maxStaleness 2 → 4" in text


def test_every_rank_of_the_trainer_has_a_lane(page: TestClient, recorded: RecordedRun):
    metrics = recorded.root / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    told = [line | {"rank_seconds": {"wait": [0.5] * 40, "train": [0.0] * 38 + [0.5, 1.0]}} for line in lines]
    with metrics.open("a") as file:  # of a step trained again the newest line counts
        file.write("".join(json.dumps(line) + "\n" for line in told))
    lanes = page.get("/r/digits/fleet?format=json").json()["lanes"]
    assert [lane["role"] for lane in lanes[:2]] == ["trainer, rank 0", "rank 1"]
    ranks = [lane for lane in lanes if lane["role"].startswith("rank ")]
    assert len(ranks) == 32
    assert [lane["role"] for lane in ranks[-2:]] == ["rank 39", "rank 40"]  # those unlike rank 0 are among the shown

    def width(lane: dict[str, Any], what: str) -> float:
        return sum(bar["width"] for bar in lane["bars"] if bar["what"] == what)

    assert width(ranks[-1], "train") == pytest.approx(2 * width(ranks[-2], "train"))
    assert width(ranks[0], "wait") == pytest.approx(width(lanes[0], "wait"))
    assert width(ranks[0], "train") == 0


def test_the_configuration_is_shown_escaped(page: TestClient):
    text = page.get("/r/digits/config").text
    assert "algorithm.maxSteps" in text
    assert "<b>digits" not in text


@pytest.fixture
def other(recorded: RecordedRun) -> Path:
    """A second run, of a job with two fields changed."""
    root = recorded.root.parent / "<i>other&"
    root.mkdir()
    job = json.loads((recorded.root / "resolved.json").read_text())
    job["job"]["spec"]["algorithm"]["maxStaleness"] = 4
    job["job"]["spec"]["model"] = {"uri": "<script>alert(1)</script>"}
    (root / "resolved.json").write_text(json.dumps(job))
    (root / "metrics.jsonl").write_text((recorded.root / "metrics.jsonl").read_text().splitlines()[0] + "\n")
    return root


def test_two_runs_are_compared_by_field_and_curve(page: TestClient, other: Path):
    link = re.search(r'href="(/compare[^"]+)"', page.get("/r/digits/config").text)
    assert link is not None
    path = unescape(link[1])
    told = page.get(f"{path}&format=json").json()
    assert told["fields"] == [
        ["algorithm.maxStaleness", ["2", "4"]],
        ["model.path", ['"models/<b>digits</b>"', "–"]],
        ["model.uri", ["–", '"<script>alert(1)</script>"']],
    ]
    assert (told["same"], [group["label"] for group in told["groups"]]) == (3, ["digits", other.name])
    assert ["step", ["4", "1"]] in told["figures"]
    text = page.get(path).text
    assert "maxStaleness" in text
    assert "<script>alert" not in text
    assert "<i>other" not in text
    curve = page.get(path.replace("/compare?", "/compare/curves?name=reward&")).json()
    assert [line["label"] for line in curve["lines"]] == ["digits", other.name]
    assert curve["lines"][1]["values"][:2] == [0.0, None]
    assert page.get("/compare?run=digits&run=none").status_code == 404
    assert page.get("/compare").status_code == 404


async def test_followers_hear_of_what_changed(recorded: RecordedRun, tmp_path: Path):
    run = ShownRun("digits", recorded.root, tmp_path / "cache")

    async def never() -> bool:
        return False

    stream = changes(run, never, 0.01)
    assert await anext(stream) == b": connected\n\n"
    follow = anext(stream)
    heard = asyncio.ensure_future(follow)
    while not heard.done():
        with (recorded.root / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 9}) + "\n")
        await asyncio.wait([heard], timeout=0.2)
    assert b"event: curves" in heard.result()
    await stream.aclose()
