"""The η table: ages are as forced, at η 0 both losses are one program, and the page shows the committed figures."""

from __future__ import annotations

import copy
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
with pytest.MonkeyPatch.context() as patch:  # no longer: other modules there have names of rooms here
    patch.syspath_prepend(BENCH)
    import eta
    import lockstep

pytestmark = pytest.mark.component

TINY = ("algorithm.batchSize=4", "algorithm.groupSize=4", "optimizer.learningRate=1e-3")
STUDY = eta.Study("small", (0, 2), eta.LOSSES, TINY, steps=4)
RECIPE = """
def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    return float(sum(map(int, completion_ids)) % 2)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> lockstep.Setting:
    """A model with random weights, which a reward of chance teaches something."""
    from areal_trainer.init_model import init_model

    home = tmp_path_factory.mktemp("eta")
    runpy.run_path(str(ROOT / "examples/digits_data.py"))["main"](home / "data")
    (home / "recipe.py").write_text(RECIPE)
    model = init_model(home / "model").path
    return lockstep.Setting(
        0, "", 0, evaluate_every=2, probe_every=2, held_out=8, model=model, data=home / "data",
        recipe=home / "recipe.py",
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(base, tmp_path_factory) -> Path:
    """Results of one seed, made as `make eta` makes them."""
    made = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as path:  # of the processes that run them
        path.syspath_prepend(BENCH)
        eta.run_all([STUDY], [5], base, made, jobs=1)
    return made


@pytest.fixture(scope="module")
def results(runs, base) -> dict[tuple[int, str], dict[str, Any]]:
    return {(one["eta"], one["loss"]): one for one in eta.read(runs, [STUDY], [5], base)}


@pytest.mark.nightly
def test_every_token_is_as_old_as_was_asked(results):
    assert set(results) == {(at, loss) for at in (0, 2) for loss in ("naive", "decoupled")}
    for (age, _), one in results.items():
        assert one["ages"] == [[min(step, age), min(step, age)] for step in range(4)]
        assert one["age_max"] == age
        assert one["age_mean"] == (5 / 4 if age else 0)


@pytest.mark.nightly
def test_without_age_the_losses_are_one_program_and_with_it_they_are_not(results):
    def program(age: int, loss: str) -> Any:
        one = results[age, loss]
        return one["held_out"], [step["grad_norm"] for step in one["steps"]], one["moved"]

    assert program(0, "naive") == program(0, "decoupled")
    assert program(2, "naive") != program(2, "decoupled")
    assert all(probe["lag"] == 0 and probe["cut"] == 0 for probe in results[0, "naive"]["moved"])
    assert results[2, "naive"]["moved"][-1]["lag"] > 0


@pytest.mark.nightly
def test_a_difference_at_eta_0_is_refused(results):
    one, other = results[0, "naive"], copy.deepcopy(results[0, "decoupled"])
    eta.check_fresh([one, other])
    other["steps"][2]["grad_norm"] += 1e-6
    with pytest.raises(ValueError, match="the losses differ"):
        eta.check_fresh([one, other])
    with pytest.raises(ValueError, match="no run shows"):
        eta.check_fresh([one])


@pytest.mark.nightly
def test_the_sampler_computes_what_the_trainer_computes(results):
    assert all(one["mismatch_max"] < 1e-4 for one in results.values())


@pytest.mark.nightly
def test_a_second_start_goes_on_and_another_setting_is_run_again(runs, base, capsys):
    eta.run_all([STUDY], [5], base, runs, jobs=1)
    assert "4 runs, 4 are there, 0 steps to go" in capsys.readouterr().out
    setting = next(STUDY.settings([5], base))
    file = eta.file_of(runs, STUDY, setting)
    assert eta.is_of(file, setting)
    assert not eta.is_of(file, replace(setting, steps=7))


@pytest.mark.nightly
def test_the_figures_have_a_row_for_each_cell_and_each_run(results):
    told = list(results.values())
    rows = eta.cells(told)
    found = json.loads(eta.figures([STUDY], rows, told))
    assert [(row["eta"], row["loss"]) for row in found["cells"]] == list(results)
    assert [run["name"] for run in found["runs"]] == [one["name"] for one in told]
    for row in found["cells"]:
        assert row["area"]["values"] == [round(results[row["eta"], row["loss"]]["area"], 6)]
        assert set(eta.MOVED) < set(row)


def test_movement_by_hand():
    behaviour, before, after = np.log([[0.5, 0.5, 0.2], [0.6, 0.5, 0.1], [0.6, 0.25, 0.1]])
    found = lockstep.movement(behaviour, before, after, np.array([1.0, -1.0, 1.0]), clip=0.1)
    logs = np.log([1.2, 1.0, 2.0])
    assert found["lag"] == pytest.approx(logs.sum() / 3)
    assert found["step"] == pytest.approx(np.log(2) / 3)
    assert found["total"] == pytest.approx((logs.sum() + np.log(2)) / 3)
    assert found["step_kl"] == pytest.approx((0.5 - 1 + np.log(2)) / 3), "KL by k3: r − 1 − log r"
    assert found["cut"] == pytest.approx(1.2 * 0.4 / (1.2 * 0.4 + 0.5 + 0.5 * 0.9)), "one is beyond, on its own side"
    assert found["effective"] == pytest.approx(2.7**2 / (3 * (1.44 + 1 + 0.25)))


def test_the_page_shows_the_committed_figures():
    told = json.loads((ROOT / "docs/eta.json").read_text())
    text = (ROOT / "docs/asynchrony.md").read_text()
    assert eta.page(text, told["cells"]) == text
    small = [row for row in told["cells"] if row["study"] == "small"]
    assert (ROOT / "docs/img/eta.svg").read_text() == eta.picture(small)
    assert [(row["eta"], row["loss"]) for row in small] == [(at, loss) for at in eta.SMALL.etas for loss in eta.LOSSES]
    assert all(len(row["seeds"]) == 3 for row in small)
