"""Memory of pods beside their GPUs: what is pinned, shared memory, staging, and what a pod asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from admit_shapes import QWEN3_8B, QWEN3_32B, QWEN25_7B
from areal.admit.memory import memory_of, pods_of
from areal.admit.memory.host import pod_plans
from areal.admit.memory.shape import adapter_of, shape_of
from areal.plan.cluster_names import Role
from areal.spec.load import load_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GIB = 1 << 30


def planned(config, *overrides, example="qwen2.5-7b-gsm8k"):
    job, shape = load_job(EXAMPLES / f"{example}.yaml", list(overrides)), shape_of(config)
    return pod_plans(job, shape, adapter_of(job, shape), None)


def test_7b_on_eight_ranks_pins_113_gib_on_a_cluster_and_one_copy_less_on_one_machine():
    eight = ("trainer.gpus=8", "trainer.procPerNode=8", "trainer.recompute=full")
    cluster = planned(QWEN25_7B, *eight)[Role.TRAINER]
    assert cluster.pinned / GIB == pytest.approx(113, abs=1), "12 bytes a parameter, and two copies of 2"
    here = planned(QWEN25_7B, *eight, "runtimeRef=null")[Role.TRAINER]
    assert (cluster.pinned - here.pinned) / GIB == pytest.approx(14.2, abs=0.1)


def test_two_nodes_hold_half_each():
    one, two = (
        planned(QWEN3_32B, f"trainer.replicas={nodes}", "trainer.gpus=8", "trainer.procPerNode=8")[Role.TRAINER]
        for nodes in (1, 2)
    )
    assert two.pinned == pytest.approx(one.pinned / 2, rel=0.01)


def test_states_in_host_memory_and_layers_inputs_are_rows_of_the_pod():
    rows = {row.what: row.size for row in planned(
        QWEN3_8B, "trainer.optimizerState=cpu", "trainer.recompute=offload", "trainer.microBatchTokens=4096",
    )[Role.TRAINER].rows}  # fmt: skip
    assert rows["optimizer's states"] == pytest.approx(12 * shape_of(QWEN3_8B).parameters)
    assert rows["inputs of layers, pinned"] == 4 * 36 * 4096 * 4096 * 2


def test_a_standby_of_the_trainer_has_a_row_of_the_pod():
    plain, with_standby = (planned(QWEN25_7B, f"trainer.standby={on}")[Role.TRAINER] for on in ("false", "true"))
    more = {row.what: row.size for row in with_standby.rows} | {row.what: 0 for row in plain.rows}
    assert {what: size for what, size in more.items() if size} == {"a standby, without a GPU yet (estimate)": 2 * GIB}
    assert with_standby.limit - plain.limit in (2 * GIB, 3 * GIB), "and a tenth, in whole GiB"


def test_staging_disk_is_planned_where_deltas_are_and_not_on_one_machine():
    server = planned(QWEN25_7B)[Role.GENERATION]
    assert server.staging == 3 * 2 * shape_of(QWEN25_7B).parameters
    assert planned(QWEN25_7B, "runtimeRef=null")[Role.GENERATION].staging == 0
    assert planned(QWEN25_7B, "weightSync.fullEvery=1")[Role.GENERATION].staging == 0


def test_the_rows_are_told_and_pods_ask_for_their_sum():
    job = load_job(EXAMPLES / "qwen2.5-7b-gsm8k.yaml", [])
    lines, pods = dict(memory_of(job, QWEN25_7B)[1]), pods_of(job, QWEN25_7B)
    subjects = ["a trainer's GPU", "a trainer's GPU at start", "a server's GPU"]
    for role, memory in pods.items():
        subjects += [f"host memory, a {role} pod", f"shared memory, a {role} pod"]
        assert f"requests and limits {memory // GIB} GiB" in lines[f"host memory, a {role} pod"]
    assert {*subjects, "staging disk, a generation pod"} <= lines.keys()
    assert pods["trainer"] > planned(QWEN25_7B)[Role.TRAINER].pinned


def test_a_model_without_closed_forms_has_no_plan_and_pods_on_cpus_none():
    assert pods_of(load_job(EXAMPLES / "qwen2.5-7b-gsm8k.yaml"), {"model_type": "mamba"}) == {}
    assert pods_of(load_job(EXAMPLES / "lora-8b.yaml", ["trainer.gpus=0", "generation.engine.gpus=0"]), QWEN3_8B) == {}
