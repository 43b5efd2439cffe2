"""Publications of several ranks: who writes what, that a death leaves nothing visible, that bytes are the model's."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
import torch
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.exports import Exports, exported_steps
from areal.weights.manifest import digest_of
from areal.weights.publish import publish
from areal.weights.stage import StagingArea
from areal.weights.verify import open_version, read_verified
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.host_copy import specs_of
from areal_trainer.engine.meeting import Meeting
from areal_trainer.publish.canary import canary, prepare
from areal_trainer.publish.exporter import Exporter, side_files, sources
from areal_trainer.publish.publisher import POINTS, Publisher, Snapshots
from areal_trainer.rollout import owners
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support import publishing_ranks
from support.forked_ranks import program

DEATHS = [(0, point) for point in POINTS[:-1]] + [(1, point) for point in ("copied", "written")]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.integers(1, 16))
def test_ranks_own_whole_layers_and_about_as_many_bytes(sizes, ranks):
    tensors = {f"model.layers.{index // 3}.{index % 3}.weight": size for index, size in enumerate(sizes)}
    chosen = owners(tensors, ranks)
    assert chosen.keys() == tensors.keys()
    layers: dict[str, set[int]] = {}
    for name, rank in chosen.items():
        layers.setdefault(name.split(".")[2], set()).add(rank)
    assert all(len(of_layer) == 1 for of_layer in layers.values())
    load = [sum(size for name, size in tensors.items() if chosen[name] == rank) for rank in range(ranks)]
    largest = max(sum(sizes[start : start + 3]) for start in range(0, len(sizes), 3))
    assert max(load) - min(load) <= largest


def given(tensors):
    return tensors, specs_of(tensors)


def test_a_snapshot_does_not_change_with_the_model():
    weight = torch.ones(4)
    held = Snapshots(keeps_before=True)
    held.take(*given([("w", weight)]), torch.device("cpu"))
    weight.add_(1)
    assert held.now.views["w"].tolist() == [1.0] * 4
    held.take(*given([("w", weight)]), torch.device("cpu"))
    assert (held.before.views["w"].tolist(), held.now.views["w"].tolist()) == ([1.0] * 4, [2.0] * 4)
    held.take(*given([("w", weight + 1)]), torch.device("cpu"))
    assert (held.before.views["w"].tolist(), held.now.views["w"].tolist()) == ([2.0] * 4, [3.0] * 4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_files_are_those_of_one_writer_byte_by_byte(tmp_path, model_path, precision):
    ranks = RankGroup()
    engine = PolicyEngine(model_path, ModelOptions(precision=precision), ranks)
    waits, proof = WaitRegistry("trainer"), canary(engine, prepare(engine, model_path))
    told: list[tuple[str, bool]] = []

    def announce(reference, final):
        told.append((str(reference.policy_id), final))
        return str(reference.policy_id)

    publisher = Publisher(tmp_path / "many", {}, 0, Meeting(ranks, "writing", 10.0), announce, waits)
    publisher.publish(
        publisher.order(PolicyId(1, 1), final=True), engine.export(), engine.export_specs(), proof, deadline_s=30.0
    )
    publisher.wait(30.0)
    publisher.close()
    ranks.close()
    assert told == [("1.f1", True)]
    alone = publish(tmp_path / "one", PolicyId(1, 1), sources(engine.export()), proof, {})
    name = "model.safetensors"
    assert (tmp_path / "many" / "v00000001.f1" / name).read_bytes() == (alone.path / name).read_bytes()
    dtype = getattr(torch, precision)
    model = load_file(model_path / name)
    assert all(torch.equal(value, model[key].to(dtype)) for key, value in load_file(alone.path / name).items())


def test_deltas_between_full_versions_are_small_and_come_out_as_what_was_exported(tmp_path):
    ranks = RankGroup()
    refs, kept = [], []
    publisher = Publisher(
        tmp_path / "volume", {}, 0, Meeting(ranks, "writing", 10.0),
        lambda ref, final: refs.append(ref) or "", WaitRegistry("trainer"), full_every=3,
    )  # fmt: skip
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    stage = StagingArea(tmp_path / "stage")
    for version in range(6):
        order = publisher.order(PolicyId(version, 1), final=version == 5)
        publisher.publish(
            order, *given([("model.layers.0.up.weight", weight)]), publishing_ranks.CANARY, deadline_s=30.0
        )
        publisher.wait(30.0)
        staged = stage.prepare(refs[-1].path, refs[-1].manifest_digest)
        loaded = load_file(staged.path / "model.safetensors")["model.layers.0.up.weight"]
        assert torch.equal(loaded, weight)
        kept.append((staged.manifest.base is None, staged.manifest.stored_bytes / staged.manifest.total_bytes))
        weight = weight.clone()
        weight.view(torch.int16)[version, ::2] ^= 1  # half of a row in 64: one word in 128
    publisher.close()
    ranks.close()
    assert [full for full, _ in kept] == [True, False, False, True, False, True]
    assert max(share for full, share in kept if not full) < 0.05


def test_exports_are_full_versions_between_deltas_and_outlive_them(tmp_path):
    ranks = RankGroup()
    exports = Exports(tmp_path / "exports", interval=2, keep=2, evaluations=tmp_path / "none.jsonl")
    publisher = Publisher(
        tmp_path / "volume", {}, 0, Meeting(ranks, "writing", 10.0), lambda ref, final: "", WaitRegistry("trainer"),
        full_every=10, exporter=Exporter(exports, tmp_path / "volume", tmp_path / "model"),
    )  # fmt: skip
    weight = torch.zeros(64, 1024, dtype=torch.bfloat16)
    for version in range(7):
        weight = weight.clone()
        weight[version] = version
        publisher.publish(
            publisher.order(PolicyId(version, 1), final=False),
            *given([("w", weight)]),
            publishing_ranks.CANARY,
            deadline_s=30.0,
        )
        publisher.wait(30.0)
        if version == 4:  # as after a crash between sealing and the export
            shutil.rmtree(tmp_path / "exports" / "step-4")
    publisher.close()
    ranks.close()
    assert exported_steps(tmp_path / "exports") == [4, 6]
    assert [
        load_file(tmp_path / "exports" / f"step-{step}" / "model.safetensors")["w"][:, 0].max() for step in (4, 6)
    ] == [4, 6]


def test_where_most_words_change_full_versions_are_written(tmp_path):
    ranks = RankGroup()
    refs = []
    publisher = Publisher(
        tmp_path, {}, 0, Meeting(ranks, "writing", 10.0),
        lambda ref, final: refs.append(ref) or "", WaitRegistry("trainer"), full_every=10,
    )  # fmt: skip
    for version in range(4):
        noise = torch.randn(64, 64, generator=torch.Generator().manual_seed(version))
        order = publisher.order(PolicyId(version, 1), final=False)
        publisher.publish(order, *given([("w", noise)]), publishing_ranks.CANARY, deadline_s=30.0)
        publisher.wait(30.0)
    publisher.close()
    ranks.close()
    manifests = [open_version(ref.path, ref.manifest_digest) for ref in refs[2:]]
    assert [manifest.base is None for manifest in manifests] == [True, False]
    assert (tmp_path / "v00000002.f1" / "model.safetensors").exists()


@pytest.mark.component
def test_a_rank_that_dies_anywhere_leaves_nothing_half_visible(tmp_path):
    cases = [*DEATHS, (1, "full disk"), (1, "late"), (-1, "nowhere")]
    said = program("publishing_ranks", tmp_path, json.dumps(cases), timeout_s=240.0)
    *found, expected = map(json.loads, said)
    assert [(one["victim"], one["point"]) for one in found] == cases
    for one in found:
        where = f"rank {one['victim']} at {one['point']!r}: {one}"
        whole = one["visible"] == {f"v00000003.f{found.index(one) + 1}": sorted(publishing_ranks.NAMES)}
        if one["point"] == "full disk":
            assert one["visible"] == {}, where
            assert one["codes"] == [75, 75], where
            assert "rank 1: OSError" in one["errors"]["0"], where
        elif one["point"] == "late":
            assert one["visible"] == {}, where
            assert "not every rank was done with writing within 1 s" in one["errors"]["0"], where
            assert "Ranks 1 failed to pass" in one["errors"]["0"], "who is missing is named"
        elif one["victim"] < 0:
            assert (one["codes"], whole, one["hidden"]) == ([0, 0], True, 0), where
        else:
            assert one["codes"][one["victim"]] == -signal.SIGKILL, where
            if one["point"] == "sealed":
                assert whole, where
            else:
                assert one["visible"] == {}, where
    last = tmp_path / str(len(found)) / "weights" / f"v00000003.f{len(found)}"
    manifest = open_version(last, digest_of((last / "manifest.json").read_bytes()))
    assert {name: bytes(view).hex() for name, _, view in read_verified(last, manifest)} == expected
    shards = sorted(path.stat().st_size for path in last.glob("*.safetensors"))
    assert len(shards) == 2, "each rank writes files of its own"


def test_a_job_s_own_chat_template_goes_along_with_the_model_in_the_tokenizer_s_place(tmp_path) -> None:
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        (tmp_path / name).write_text(f"the model's {name}")
    assert side_files(tmp_path, tmp_path)["chat_template.jinja"] == tmp_path / "chat_template.jinja"
    beside = side_files(tmp_path, tmp_path, "{{ messages }}")
    assert beside["chat_template.jinja"] == b"{{ messages }}"
    assert beside["tokenizer.json"] == tmp_path / "tokenizer.json"
