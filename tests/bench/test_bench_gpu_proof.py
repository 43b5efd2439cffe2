"""The proof on a card: what is written when, what a stand-in counts as, and that planted faults fail their claims."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from areal.admit.memory.shape import shape_of

BENCH = Path(__file__).resolve().parents[2] / "bench"
with pytest.MonkeyPatch.context() as patch:  # no longer: other modules there have names of rooms here
    patch.syspath_prepend(BENCH)
    from gpu_proof import __main__ as proof
    from gpu_proof import flops
    from gpu_proof.cell import measure
    from gpu_proof.claims import CELLS, KINDS, Cell, Claim, chosen

CARD = proof.Machine("NVIDIA H100 80GB HBM3", 1, 80 << 30, "580.65.06", "2.14.1")
BESIDE_TORCH = ("torch", "torchgen", "functorch", "numpy", "numpy.libs", "nvidia", "sympy", "mpmath", "networkx",
                "typing_extensions.py", "triton")  # fmt: skip
BARE = proof.Machine(torch="2.14.1")
FIRST = Claim("first", "the first is small", "m", at_most=1.0)
SECOND = Claim("second", "the second is large", "m", at_least=5.0)
DEVICE = Claim("device", "a number of the card's", stand_in=False)
ALL = (FIRST, SECOND, DEVICE)


def says(**measured: Any) -> str:
    """A program that says what it measured."""
    told = [json.dumps({"claim": claim, "measured": value}) for claim, value in measured.items()]
    return "".join(f"print({line!r}, flush=True)\n" for line in told)


def tried(tmp_path: Path, machine: Any, programs: Mapping[str, str], *, seconds: float = 60, **limits: float) -> Any:
    """The lines of these cells, from the file, by claim; each is a program's, of the same three claims."""
    cells = [Cell(name, "speed", "none", limits.get(name, 30.0), ALL) for name in programs]
    lines = proof.Lines(tmp_path / "lines.jsonl", machine)
    (tmp_path / "log").write_text("")
    ran = proof.Proof(
        machine, lines, lambda cell: [sys.executable, "-c", programs[cell.name]], tmp_path / "log",
        time.monotonic() + seconds,
    )  # fmt: skip
    ran.run(cells, stand_ins=True)
    lines.close()
    found = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [row["claim"] for row in found] == [claim.name for _ in programs for claim in ALL] or len(programs) == 1
    return {(row["cell"], row["claim"]): row for row in found}


def test_on_a_card_a_bound_decides_and_each_line_names_the_card(tmp_path):
    found = tried(tmp_path, CARD, {"one": says(first=0.5, second=4.0, device=7.0)})
    assert [row["state"] for row in found.values()] == ["proved", "failed", "proved"]
    for row in found.values():
        assert (row["card"], row["driver"], row["torch"]) == (CARD.card, CARD.driver, CARD.torch)
        assert row["date"].startswith("20")
        assert not row["stand_in"]


def test_what_is_no_number_fails(tmp_path):
    found = tried(tmp_path, CARD, {"one": says(first=None, second=None, device=None)})
    assert {row["state"] for row in found.values()} == {"failed"}


def test_a_cpu_that_stands_in_proves_nothing_but_can_fail(tmp_path):
    found = tried(tmp_path, BARE, {"one": says(first=0.5, second=4.0)})
    first, second, device = found["one", "first"], found["one", "second"], found["one", "device"]
    assert (first["state"], first["stand_in"], first["measured"]) == ("not tried", True, 0.5)
    assert "a CPU stood in" in first["reason"]
    assert (second["state"], second["stand_in"]) == ("failed", True)
    assert (device["state"], device["reason"], device["stand_in"]) == ("not tried", "no CUDA device", False)


def test_a_cell_that_dies_fails_what_it_has_not_measured_with_its_last_words(tmp_path):
    found = tried(tmp_path, CARD, {"one": says(first=0.5) + "raise MemoryError('no room')", "two": says(first=0.1)})
    assert found["one", "first"]["state"] == "proved"
    assert found["one", "second"]["state"] == "failed"
    assert "MemoryError: no room" in found["one", "second"]["reason"]
    assert found["two", "second"]["reason"] == "it was not measured"


HANGS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def test_a_cell_that_hangs_is_ended_and_the_others_are_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(proof, "GRACE_S", 0.2)
    found = tried(tmp_path, CARD, {"one": says(first=0.5) + HANGS, "two": says(first=0.1)}, one=1.0)
    assert found["one", "first"]["state"] == "proved"
    assert (found["one", "second"]["state"], found["one", "second"]["reason"]) == ("failed", "not done after 1 s")
    assert found["two", "first"]["state"] == "proved"


def test_when_the_time_is_over_what_is_known_stays_and_the_rest_is_not_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(proof, "GRACE_S", 0.2)
    monkeypatch.setattr(proof, "LEAST_S", 0.5)
    found = tried(tmp_path, CARD, {"one": says(first=0.5) + HANGS, "two": says(first=0.1)}, seconds=1.5)
    assert found["one", "first"]["state"] == "proved"
    rest = [row for row in found.values() if row["claim"] != "first" or row["cell"] == "two"]
    assert {(row["state"], row["reason"]) for row in rest} == {("not tried", "the time given was over")}


def test_a_line_is_on_disk_while_its_cell_still_runs(tmp_path, monkeypatch):
    seen: list[str] = []
    add = proof.Lines.add

    def watched(self: Any, *given: Any, **told: Any) -> None:
        add(self, *given, **told)
        seen.append((tmp_path / "lines.jsonl").read_text().splitlines()[-1])

    monkeypatch.setattr(proof.Lines, "add", watched)
    tried(tmp_path, CARD, {"one": says(first=0.5, second=6.0, device=7.0)})
    assert [json.loads(line)["claim"] for line in seen] == ["first", "second", "device"]


def test_without_a_card_nothing_is_tried_and_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(proof, "probed", lambda command: BARE)
    assert proof.main(["--out", str(tmp_path / "lines.jsonl")]) == 64
    rows = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert {(row["state"], row["reason"]) for row in rows} == {("not tried", "no CUDA device")}
    assert len(rows) >= 40
    assert f"0 proved, 0 failed, {len(rows)} not tried" in capsys.readouterr().out


def test_the_claims_have_names_of_their_own_and_are_tried_in_order():
    names = [claim.name for cell in CELLS for claim in cell.claims]
    assert len(names) == len(set(names)) >= 40
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    kinds = [cell.kind for cell in chosen()]
    assert kinds == sorted(kinds, key=KINDS.index)
    assert {cell.kind for cell in chosen(["loop", "attention"])} == {"loop", "correctness"}
    with pytest.raises(ValueError, match="kernel"):
        chosen(["kernel"])


@pytest.mark.component
def test_every_cell_has_its_function():
    for cell in CELLS:
        assert cell.name in importlib.import_module(f"gpu_proof.{cell.module}").FUNCTIONS


TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "tie_word_embeddings": False,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.mark.component
def test_operations_are_those_that_torch_counts():
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    length = 32
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY), attn_implementation="eager")
    with FlopCounterMode(display=False) as counted:
        model(torch.zeros(1, length, dtype=torch.long)).logits.sum().backward()
    tiny = shape_of(TINY)
    square = flops.step_flops(tiny, [length], length) - flops.step_flops(tiny, [1] * length, length)
    masked = 6 * tiny.layers * tiny.queries * length  # what the formula gives to documents of one token
    assert counted.get_total_flops() == pytest.approx(
        flops.step_flops(tiny, [length], length) + square + masked, rel=0.01
    ), "eager attention computes the whole square, twice what is causal"


def test_a_share_is_of_the_card_s_data_sheet_or_of_the_measured_product():
    assert flops.peak_of("NVIDIA H200", 1.0) == 989e12
    assert flops.peak_of("another", 7e14) == 7e14


# ---- cells, on this machine's CPU


def measured(name: str, work: Path) -> dict[str, float]:
    """What a cell measures here, by claim."""
    told: list[dict[str, Any]] = []
    measure(next(cell for cell in CELLS if cell.name == name), work, told.append)
    return {one["claim"]: float("nan") if one["measured"] is None else one["measured"] for one in told}


def wrong(name: str, found: Mapping[str, float]) -> set[str]:
    """The claims that a cell's numbers don't hold."""
    claims = {claim.name: claim for cell in CELLS if cell.name == name for claim in cell.claims}
    return {claim for claim, value in found.items() if not claims[claim].holds(value)}


@pytest.fixture
def planted(monkeypatch) -> Callable[[Any, str, Any], None]:
    return lambda owner, name, fault: monkeypatch.setattr(owner, name, fault)


@pytest.mark.component
def test_a_wrong_mask_fails_and_the_right_one_does_not(tmp_path, planted):
    from areal_trainer.engine import attention
    from torch.nn.functional import scaled_dot_product_attention

    assert wrong("attention", measured("attention", tmp_path)) == set()

    def everything(query, key, value, layout, scale, *_):  # no causality, no segments
        key, value = attention._copied(query, key, value)
        q, k, v = (one.transpose(0, 1)[None] for one in (query, key[: len(query)], value[: len(query)]))
        return scaled_dot_product_attention(q, k, v, scale=scale)[0].transpose(0, 1)

    planted(attention, "_one_by_one", everything)
    assert {"varlen-causal", "varlen-prefix", "varlen-lengths"} <= wrong("attention", measured("attention", tmp_path))


@pytest.mark.component
def test_an_update_that_is_dropped_fails_the_publication(tmp_path, planted):
    from areal_trainer.engine.adam_states import AdamState

    assert wrong("publish", measured("publish", tmp_path / "right")) == set()
    planted(AdamState, "step", lambda self, gradients, learning_rate: None)
    assert wrong("publish", measured("publish", tmp_path / "wrong")) == {"published-update"}


@pytest.mark.component
def test_memory_that_stays_fails(tmp_path, planted):
    from gpu_proof import memory

    kept: list[Any] = []
    usual = memory.engine

    def leaky(*given: Any, **options: Any) -> Any:
        kept.append(usual(*given, **options))
        return kept[-1]

    planted(memory, "engine", leaky)
    assert "freed-engine" in wrong("device-memory", measured("device-memory", tmp_path))


@pytest.mark.nightly
@pytest.mark.component
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("torch", ["this one", "2.11"])
def test_no_stand_in_fails(tmp_path, torch):
    other = os.environ.get("AREAL_TORCH_211")
    if torch == "2.11" and not other:
        pytest.skip("no Python with torch 2.11 is named in AREAL_TORCH_211")
    python = sys.executable if torch == "this one" else other
    root = BENCH.parent
    path = os.pathsep.join(str(root / one) for one in ("bench", "services", "trainer"))
    done = subprocess.run(
        [python, "-m", "gpu_proof", "--stand-ins", "all", "--seconds", "3400", "--out", tmp_path / "lines.jsonl"],
        cwd=root, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert done.returncode == 0, done.stdout
    assert {row["state"] for row in rows} == {"not tried"}
    assert {row["claim"] for row in rows if row["stand_in"]} == {
        claim.name for cell in CELLS for claim in cell.claims if claim.stand_in
    }


@pytest.mark.nightly
@pytest.mark.component
@pytest.mark.timeout(3600)
def test_the_pack_runs_on_a_machine_that_has_torch_alone_and_no_network(tmp_path):
    archive = tmp_path / "gpu-proof.tar.gz"
    root = BENCH.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(BENCH))
        subprocess.run([sys.executable, "-m", "gpu_proof.pack", archive], cwd=root, check=True)
    assert archive.stat().st_size <= 64 << 20
    subprocess.run(["tar", "xf", archive, "-C", tmp_path], check=True)
    bare = tmp_path / "bare"
    bare.mkdir()
    packages = Path(torch_of(sys.executable)).parents[1]
    for name in BESIDE_TORCH:
        if (packages / name).exists():
            (bare / name).symlink_to(packages / name)
    alone = [] if os.geteuid() else ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    asked = ["--stand-ins", "all", "--cells", "publish,loop", "--out", tmp_path / "lines.jsonl"]
    kept = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*alone, tmp_path / "gpu-proof/prove", *asked], capture_output=True, text=True,
        env={**kept, "PYTHON": sys._base_executable, "PYTHONPATH": str(bare)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def torch_of(python: str) -> str:
    asked = "import importlib.util as u; print(u.find_spec('torch').origin)"
    return subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
