"""Lists of samples to read: what they say, filters and search as plain links, strangers' texts, a page that waits."""

from __future__ import annotations

import json
import re
import time
from html import unescape

import pytest
from areal_view.index import record_index
from areal_view.index.record_index import RecordIndex
from areal_view.index.sample_text import visible
from areal_view.pages import reading
from areal_view.pages.reading import PartTrend, conflicts_of
from starlette.testclient import TestClient
from support.recorded_run import RecordedRun, made_sample, sample_frame, with_text
from support.view_words import SPOKEN

GSM8K = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many clips "
    "did Natalia sell altogether in April and May?",
    "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 clips altogether.\n#### 72",
)


def record(run: RecordedRun, group: int, question: str, answer: str, *, reward: float = 0.0, **figures: float) -> None:
    """A sample of its own group."""
    made = with_text(made_sample(group, 0, version=group), question, answer)
    made.reward, made.expected = reward, GSM8K[1]
    for name, value in figures.items():
        made.sample.verdict.figures[name] = value
    run.append("trajectories", "worker-0-1-000000", sample_frame(made))


def indexed(page: TestClient) -> None:
    """Wait for the full-text index."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        told = page.get("/r/digits/search?format=json").json()["progress"]
        if told["texts"] == told["samples"] and told["taken"] == told["size"]:
            return
        time.sleep(0.02)
    raise AssertionError("it is not indexed within a minute")


def said(text: str) -> list[str]:
    """What a list shows as text: questions, answers, expected answers."""
    found = re.findall(r'<dd class="text(?: fault)?">(.*?)</dd>', text, re.S)
    return [unescape(re.sub(r"<[^>]+>", "", one)) for one in found]


def test_a_list_shows_question_answer_expected_answer_reward_and_parts(page: TestClient, recorded: RecordedRun):
    record(recorded, 700, GSM8K[0], "She sold 48 + 24 = 72.", reward=1.0, correct=1.0, format=0.25)
    indexed(page)
    shown = page.get("/r/digits/search").text
    assert said(shown)[:3] == [GSM8K[0], "She sold 48 + 24 = 72.", GSM8K[1]]
    assert '<span class="reward good">1.000</span>' in shown
    assert "correct <b>1</b> · format <b>0.25</b>" in shown
    for path in ("groups/700", "samples/700.0"):
        assert "expected answer" in page.get(f"/r/digits/{path}").text
    told = page.get("/r/digits/steps/1").text
    answers = [made.texts[0].text.decode()[3:] for key, made in recorded.samples.items() if key[0] // 3 == 1]
    assert set(answers) <= set(said(told))


@pytest.mark.parametrize(("reward", "colour"), [(1.0, " good"), (0.0, ""), (-1.0, " bad")])
def test_the_colour_of_a_reward_is_its_sign(page: TestClient, recorded: RecordedRun, reward: float, colour: str):
    record(recorded, 700, "question", "answer", reward=reward)
    for path in ("search", "groups/700", "samples/700.0"):
        assert f'<span class="reward{colour}">{reward:.3f}</span>' in page.get(f"/r/digits/{path}").text


def test_pages_of_a_list_have_every_sample_once(page: TestClient, recorded: RecordedRun):
    for step in range(4, 25):
        recorded.train(step)
    seen, path = list[str](), "/r/digits/search?low=0.5"
    while path:
        shown = page.get(path).text
        seen += re.findall(r'<h3><a href="/r/digits/samples/([\d.]+)"', shown)
        more = re.search(r'<a href="([^"]+)" rel="next">', shown)
        path = unescape(more[1]) if more else ""
    expected = [f"{group}.{index}" for (group, index), made in recorded.samples.items() if made.reward >= 0.5]
    assert len(seen) > reading.PAGE
    assert sorted(seen) == sorted(expected)


def test_filters_are_plain_parameters_that_its_links_keep(page: TestClient, recorded: RecordedRun):
    for group in range(700, 760):
        record(recorded, group, "q", f"answer {group}", reward=group % 2, correct=group % 2, format=(group - 700) / 60)
    indexed(page)
    asked = "order=-figures.format&low.correct=1&high.format=0.9&from_version=710&to_version=750&outcome=complete"
    shown = page.get(f"/r/digits/search?{asked}").text
    assert [text for text in said(shown) if text.startswith("answer")] == [
        f"answer {group}" for group in range(750, 709, -1) if group % 2
    ]
    assert 'name="low.correct" size="6" inputmode="decimal" value="1"' in shown
    rest = page.get("/r/digits/samples.jsonl?low.format=0.9").text.splitlines()
    assert [json.loads(line)["group"] for line in rest] == list(range(759, 753, -1))
    more = re.search(r'href="([^"]+)" rel="next"', page.get("/r/digits/search?order=figures.format&low.format=0").text)
    assert more is not None
    told = page.get(unescape(more[1]) + "&format=json").json()
    assert [line["row"]["group"] for line in told["lines"]] == list(range(750, 760))


def test_a_search_marks_its_hits_in_question_and_answer(page: TestClient, recorded: RecordedRun):
    record(recorded, 700, GSM8K[0], "She sold 72 clips.")
    record(recorded, 701, "How many apples?", "filler " * 10_000 + "the <b>Needle</b> is here " + "filler " * 10_000)
    indexed(page)
    shown = page.get("/r/digits/search", params={"text": "needle filler"}).text
    assert len(said(shown)) == 3
    assert "&lt;b&gt;<mark>Needle</mark>&lt;/b&gt;" in shown
    assert len(shown) < 12_000
    hits = page.get("/r/digits/search", params={"text": '"clips in May"'}).text
    assert "<mark>clips in May</mark>" in hits
    assert said(page.get("/r/digits/search", params={"text": '"May clips"'}).text) == []
    assert "No sample like this" in page.get("/r/digits/search", params={"text": "nowhere"}).text


def test_answers_that_several_questions_have_are_said_so(page: TestClient, recorded: RecordedRun):
    for group in range(700, 704):
        record(recorded, group, f"question {group}", "as an expert I am sure" if group != 702 else "two")
    assert page.get("/r/digits/search").text.count("3 questions on this page have this answer.") == 3


@pytest.mark.parametrize("name", SPOKEN)
def test_texts_of_strangers_are_shown_and_found(page: TestClient, recorded: RecordedRun, name: str):
    question, answer, query = SPOKEN[name]
    record(recorded, 700, question, answer, format=0.5)
    indexed(page)
    for path in ("search", "groups/700", "samples/700.0"):
        shown = page.get(f"/r/digits/{path}")
        assert shown.status_code == 200
        assert not set(shown.text) & {"\x1b", "\u202e", "\u2066", "\x00", "\u200b"}
        assert "<script>alert" not in shown.text
        assert "<img" not in shown.text
        assert len(shown.text) < 60_000 or path.startswith("samples")
    hits = page.get("/r/digits/search", params={"text": query}).text
    assert "<mark>" in hits
    assert "700.0" in hits
    whole = unescape(re.sub(r"<[^>]+>", "", page.get("/r/digits/samples/700.0").text))
    assert visible(answer[-30:]) in whole


def test_what_is_not_indexed_yet_says_how_far_it_is(
    page: TestClient, recorded: RecordedRun, monkeypatch: pytest.MonkeyPatch
):
    for step in range(4, 60):
        recorded.train(step)
    monkeypatch.setattr(record_index, "_SLICE_S", 0.0)
    monkeypatch.setattr(record_index, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(RecordIndex.refresh, "__defaults__", (0.0,))
    answer = page.get("/r/digits/steps/59")
    assert answer.status_code == 202
    assert re.search(r"[\d.]+ of [\d.]+ MiB", answer.text)
    assert answer.headers["refresh"] == "2"
    told = page.get("/r/digits/samples/177.0/tokens/0")
    assert told.status_code in (200, 202)
    for path in ("", "/search", "/search?text=a", "/evals", "/fleet", "/config", "/groups/170"):
        assert page.get(f"/r/digits{path}").status_code in (200, 202), path
    deadline = time.monotonic() + 60
    while page.get("/r/digits/steps/59").status_code == 202 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert page.get("/r/digits/steps/59").status_code == 200
    assert page.get("/r/digits/steps/99").status_code == 404


@pytest.mark.parametrize(
    ("recording", "advice"),
    [({"share": 0.0}, "Set recording.share to 1"), ({"share": 0.0, "tokenAudit": True}, "only token ids are kept")],
)
def test_a_run_without_texts_says_what_to_switch_on(page: TestClient, recorded: RecordedRun, recording, advice: str):
    for segment in (recorded.root / "trajectories").iterdir():
        segment.unlink()
    (recorded.root / "resolved.json").write_text(json.dumps({"job": {"spec": {"recording": recording}}}))
    assert advice in page.get("/r/digits/search").text
    made = made_sample(700, 0)
    del made.texts[:]
    recorded.append("trajectories", "worker-0-1-000000", sample_frame(made))
    assert "Its text is not recorded." in page.get("/r/digits/search").text


def test_an_evaluation_lists_its_answers_by_the_same_filters(page: TestClient, recorded: RecordedRun):
    for row in range(3):
        made = with_text(made_sample(row, 1), GSM8K[0], f"answer {row}")
        made.evaluation_id, made.reward = "4.f1-cd", row / 2
        recorded.append("trajectories", "worker-0-1-000000", sample_frame(made))
    shown = page.get("/r/digits/evals/4.f1-cd?order=reward&low=0.5").text
    assert [text for text in said(shown) if text.startswith("answer")] == ["answer 1", "answer 2"]
    assert 'href="/r/digits/evals/4.f1-cd/1.1"' in shown


def test_a_part_that_rose_while_another_fell_or_stood_is_a_conflict():
    trends = [
        PartTrend("format", 0.1, 0.9, 0.0, 1.0), PartTrend("correct", 0.6, 0.1, 0.0, 1.0),
        PartTrend("fine", 0.95, 0.95, 0.0, 1.0), PartTrend("flat", 0.3, 0.3, 0.0, 1.0),
        PartTrend("same", 0.0, 0.0, 0.0, 0.0), PartTrend("new", None, 0.5, 0.0, 1.0),
    ]  # fmt: skip
    found = conflicts_of(trends)
    assert [(one.rose.name, one.other.name) for one in found] == [("format", "correct"), ("format", "flat")]
    assert found[0].query == {"order": "-figures.format", "low.format": "0.5", "high.correct": "0.5"}
