"""docs/gpus.md shows the newest proof on a card with its date, or says that there is none."""

from __future__ import annotations

import json

from tools.pages import gpu_proof

ROW = {
    "claim": "packed-alone", "says": "a packed sequence scores as alone", "state": "proved", "measured": 0.00123456,
    "unit": "mean difference", "bound": "≤ 0.02", "reason": "", "card": "NVIDIA H100", "driver": "580.65.06",
    "torch": "2.14.1",
}  # fmt: skip


def written(place, name, *rows):
    place.mkdir(exist_ok=True)
    (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_page_is_fresh():
    assert gpu_proof.PAGE.read_text() == gpu_proof.render(), "run `make docs`"
    assert ("Newest proof: none" in gpu_proof.render()) == (gpu_proof.newest() == [])


def test_the_newest_proof_is_shown_with_its_date_card_and_claims(tmp_path):
    written(tmp_path, "2027-02-01-z.jsonl", {**ROW, "date": "2027-02-01T00:00:00+00:00", "card": "old"})
    late = {"claim": "head-plain", "state": "not tried", "measured": None, "reason": "the time given was over"}
    newest = [{**ROW, **more, "date": "2027-03-01T00:00:00+00:00"} for more in ({}, late)]
    written(tmp_path, "2027-03-01-a.jsonl", *newest)
    found = gpu_proof.block(gpu_proof.newest(tmp_path))
    assert (
        "**Newest proof: 2027-03-01**, NVIDIA H100, driver 580.65.06, torch 2.14.1: 1 proved, 0 failed, 1 not tried."
        in found
    )
    assert "| packed-alone: a packed sequence scores as alone | proved | 0.001235 mean difference | ≤ 0.02 |" in found
    assert "| not tried | the time given was over | ≤ 0.02 |" in found


def test_a_machine_without_a_card_has_no_proof(tmp_path):
    written(tmp_path, "2027-03-01-cpu.jsonl", {**ROW, "card": "", "date": "2027-03-01T00:00:00+00:00"})
    assert gpu_proof.block(gpu_proof.newest(tmp_path)) == gpu_proof.NONE
