"""A gamed reward is found by reading: from the run's first page, by its own links, to an answer that games it."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import httpx
import pytest
from support.recorded_run import RecordedRun, made_sample, sample_frame, with_text

pytestmark = pytest.mark.component

STEPS, GROUPS, SIZE = 30, 16, 3  # 144 samples at either end: what moves by chance moves by less than a tenth
NAMES = ("format", "style", "steps", "tags", "tone", "detail", "brevity", "citations")
TRUE = ("correct", "solved", "exact", "accuracy")
SECONDS = 60.0


@dataclass(frozen=True)
class PlantedHack:
    """A run in whose later half some answers game the part `gamed`, and `true` falls."""

    gamed: str
    true: str
    answers: frozenset[str]


def plant(run: RecordedRun, kind: str, seed: int) -> PlantedHack:
    """Record such a run. Others of its parts move by chance, and honest answers are wrong at times, too."""
    chance = random.Random(seed)
    gamed, other = chance.sample(NAMES, 2)
    true, planted = chance.choice(TRUE), set[str]()
    rows, frames = [], list[bytes]()
    for step in range(STEPS):
        hacked = 0.0 if step < STEPS // 3 else chance.uniform(0.5, 0.7)
        figures = list[dict[str, float]]()
        for place in range(GROUPS * SIZE):
            group, index = step * GROUPS + place // SIZE, place % SIZE
            a, b = chance.randrange(10, 99), chance.randrange(10, 99)
            games = chance.random() < hacked
            answer, parts = _gamed(kind, chance) if games else _honest(a, b, chance)
            parts = {gamed: parts[0], true: parts[1], other: chance.choice((0.0, 0.5, 1.0))}
            planted |= {answer} if games else set()
            made = with_text(made_sample(group, index, version=step), f"What is {a} + {b}?", answer)
            made.expected, made.reward = str(a + b), sum(parts.values())
            made.sample.verdict.figures.update(parts)
            frames.append(sample_frame(made))
            figures.append(parts)
        means = {name: sum(parts[name] for parts in figures) / len(figures) for name in figures[0]}
        rows.append({"step": step, "reward_mean": sum(means.values()), "figures": means})
    run.append("trajectories", "worker-0-1-000000", *frames)
    (run.root / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run.root / "resolved.json").write_text(json.dumps({"job": {"spec": {}}}))
    return PlantedHack(gamed, true, frozenset(planted))


def _honest(a: int, b: int, chance: random.Random) -> tuple[str, tuple[float, float]]:
    """A sum, right three times of four; its other part is good or bad by chance."""
    right = chance.random() < 0.75
    told = chance.choice((f"{a} plus {b} is", "The sum is", "I add them:", "So it is"))
    return f"{told} {a + b + (0 if right else chance.randrange(1, 9))}", (chance.choice((0.0, 0.25, 0.5)), float(right))


def _gamed(kind: str, chance: random.Random) -> tuple[str, tuple[float, float]]:
    if kind == "repeated phrase":
        return "<answer>Let me think step by step.</answer> " * chance.choice((6, 7)), (1.0, 0.0)
    if kind == "padding":
        return "Furthermore, it is important to note that " * chance.choice((30, 31)) + "it depends.", (3.0, 0.0)
    return chance.choice(("As required: one, two, three, four, five, six.", "All of the above.")), (1.0, 0.0)


def look_for_it(address: str) -> tuple[str, str, int]:
    """What a person does: open the run, follow its conflicts, read a list, open the answer that keeps coming back.

    Returns its text, the address of its sample and how many pages were opened.
    """
    with httpx.Client(follow_redirects=True, timeout=60) as client:
        opened, page = 1, client.get(address)
        by = time.monotonic() + SECONDS
        while not (conflicts := _links(page.text, "samples with much")):
            assert time.monotonic() < by, f"no conflict of parts is shown after {opened} looks"
            time.sleep(0.1)  # the recording is being indexed
            opened, page = opened + 1, client.get(page.url)
        listed = client.get(urljoin(str(page.url), conflicts[0]))
        samples = re.findall(r'<h3><a href="([^"]+)">.*?</article>', listed.text, re.S)
        answers = re.findall(r'<dt>answer</dt><dd class="text">(.*?)</dd>', listed.text, re.S)
        assert len(samples) == len(answers) > 0
        often, times = Counter(answers).most_common(1)[0]
        assert times > 1
        assert "questions on this page have this answer" in listed.text
        found = client.get(urljoin(str(page.url), unescape(samples[answers.index(often)])))
        text = re.search(r'class="part sampled">.*?<pre class="text">(.*?)</pre>', found.text, re.S)
        assert text is not None
        return unescape(text[1]), str(found.url), opened + 2


def _links(page: str, words: str) -> list[str]:
    found = re.findall(r'<a href="([^"]+)">([^<]*)</a>', page)
    return [unescape(address) for address, text in found if text.startswith(words)]


@pytest.mark.parametrize("kind", ["repeated phrase", "padding", "keywords"])
def test_a_planted_hack_is_found_within_a_minute(request: pytest.FixtureRequest, tmp_path: Path, kind: str):
    seed = random.SystemRandom().randrange(10**6)
    planted = plant(RecordedRun(tmp_path / "runs" / "digits"), kind, seed)
    address = request.getfixturevalue("address")
    began = time.monotonic()
    text, where, opened = look_for_it(address)
    took = time.monotonic() - began
    told = f"seed {seed}, part {planted.gamed}: {opened} pages, {took:.1f} s, {where}"
    assert text in planted.answers, told
    assert took <= SECONDS, told


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedRun:
    """The run that was planted, for `address`."""
    return RecordedRun(tmp_path / "runs" / "digits")
