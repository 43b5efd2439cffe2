"""What can't fit is refused before it starts, with the arithmetic and the knob that helps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from admit_shapes import QWEN3_32B, QWEN25_7B
from areal.admit.memory import memory_of, pods_of, running_of
from areal.admit.memory.volume import caches_of
from areal.spec import load_job

CORPUS = Path(__file__).parents[1] / "spec" / "corpus" / "accepted"
QWEN3_8B = {
    "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
EIGHT_CARDS = ["trainer.gpus=8", "trainer.gpuMemory=79.5Gi", "podTemplate=null"]
GIB = 1 << 30
MASKED = "trainer.attention=dense"


def judged(*overrides: str, config=None):
    findings, lines = memory_of(load_job(CORPUS / "gpus.yaml", [*EIGHT_CARDS, *overrides]), config or QWEN3_8B)
    return {finding.rule: finding for finding in findings}, dict(lines)


def test_8b_at_8192_tokens_on_eight_cards_is_refused_with_sums_and_a_knob():
    findings, lines = judged("trainer.microBatchTokens=8192", "rollout.maxSampleTokens=4096", MASKED)
    refused = findings["does-not-fit"]
    assert "8,192 tokens on 8 GPUs: 15.3 GiB weights" in refused.message
    assert "62.7 GiB activations + 4.5 GiB attention masks" in refused.message
    assert refused.message.endswith("a rank, and a GPU has 79.5 GiB")
    assert refused.fix == "Set trainer.recompute to selective (40.1 GiB)."
    assert lines["if recomputed"].startswith("trainer.recompute: full would take")


def test_what_fits_is_told_and_not_refused():
    findings, lines = judged("trainer.microBatchTokens=4096", "rollout.maxSampleTokens=4096")
    assert not findings
    assert "4,096 tokens on 8 GPUs" in lines["a trainer's GPU"]
    assert "samples of 4,096" in lines["a server's GPU"]
    assert lines["disk"].endswith("take 320.4 GiB")


def test_8b_at_32768_tokens_fits_eight_cards_by_segments_and_recomputation():
    long = ("trainer.microBatchTokens=32768", "rollout.maxSampleTokens=32768")
    assert judged(*long)[0]["does-not-fit"].fix == "Set trainer.recompute to full (38.9 GiB)."
    assert "does-not-fit" not in judged(*long, "trainer.recompute=full")[0]


def test_a_long_sample_names_the_sample_as_the_knob():
    long = ("trainer.microBatchTokens=262144", "rollout.maxSampleTokens=262144")
    for mode in ("none", "full"):
        fix = judged(*long, f"trainer.recompute={mode}")[0]["does-not-fit"].fix
        assert fix.startswith("Lower rollout.maxSampleTokens and trainer.microBatchTokens")


def test_states_that_are_too_many_name_more_gpus():
    findings, _ = judged("trainer.gpus=1", "trainer.microBatchTokens=1024", "rollout.maxSampleTokens=1024")
    fix = "Set trainer.optimizerState to cpu (76.4 GiB), or train on 2 GPUs (trainer.replicas 2)."
    assert findings["does-not-fit"].fix == fix


PROPOSED = (  # a piece of advice, and the fields that it sets
    (r"trainer\.recompute to (\w+)", "trainer.recompute={}"),
    (r"trainer\.optimizerState to (\w+)", "trainer.optimizerState={}"),
    (r"trainer\.mesh\.replicate to (\d+)", "trainer.mesh.replicate={}"),
    (r"trainer\.replicas (\d+)", "trainer.replicas={}"),
    (r"maxSampleTokens and .* to ([\d,]+)", "rollout.maxSampleTokens={0} trainer.microBatchTokens={0}"),
    (r"(kl\.placement): offloaded", "algorithm.{}=offloaded"),
)


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("config", [QWEN3_8B, QWEN3_32B], ids=["8B", "32B"])
@pytest.mark.parametrize("tokens", [1024, 65536])
def test_whatever_the_advice_proposes_makes_the_plan_fit(gpus, recompute, config, tokens):
    given = [f"trainer.gpus={gpus}", f"trainer.recompute={recompute}"]
    given += [f"trainer.microBatchTokens={tokens}", f"rollout.maxSampleTokens={tokens}"]
    refused = judged(*given, config=config)[0].get("does-not-fit")
    for advice in refused.fix.split(", or ") if refused else ():
        found = [(re.search(pattern, advice), field) for pattern, field in PROPOSED]
        changed = " ".join(field.format(match[1].replace(",", "")) for match, field in found if match).split()
        assert changed or "smaller model" in refused.fix, advice
        assert not changed or "does-not-fit" not in judged(*given, *changed, config=config)[0], advice


ONE_CARD = ["trainer.gpus=1", "trainer.gpuMemory=79Gi", "placement=shared", "algorithm.maxStaleness=1"]
ONE_SERVER = ["generation.replicas=1", "generation.engine.tensorParallel=1", "generation.engine.gpus=1"]
SHARED = [*ONE_CARD, *ONE_SERVER, "rollout.maxSampleTokens=4096", "trainer.microBatchTokens=4096", "trainer.mesh=null"]


def test_one_card_is_planned_for_both_turns_and_all_of_7b_is_refused_for_an_adapter():
    findings, lines = judged(*SHARED, config=QWEN25_7B)
    assert "trainer.lora: {}" in findings["does-not-fit"].fix
    assert "of which a sleeping server keeps 2.5 GiB" in findings["does-not-fit"].message
    assert "samples of 4,096" in lines["a shared GPU while servers generate"]
    assert "1.5 GiB are the sleeping trainer's" in lines["a shared GPU while servers generate"]
    assert lines["its server asleep"].startswith("2.5 GiB")

    findings, lines = judged(*SHARED, "trainer.lora={}", config=QWEN3_8B)
    assert not findings
    assert lines["its server asleep"].startswith("17.8 GiB"), "the adapter's base stays, beside contexts and graphs"
    host = lines["host memory, a trainer pod"]
    assert "15.3 GiB what the trainer holds" not in host
    assert "what the trainer holds, while servers have the cards, pinned" in host
    separate, told = judged(*SHARED, "placement=separate", "trainer.lora={}", config=QWEN3_8B)
    assert not separate
    assert "its server asleep" not in told
    assert "while servers have the cards" not in told["host memory, a trainer pod"]


def test_copies_cost_memory_and_fewer_copies_are_the_knob():
    copies = ("trainer.mesh.replicate=8", "trainer.microBatchTokens=1024", "rollout.maxSampleTokens=1024")
    refused = judged(*copies)[0]["does-not-fit"]
    assert "1,024 tokens on 8 GPUs in 8 copies: 122.1 GiB weights" in refused.message
    assert refused.fix == "Set trainer.optimizerState to cpu (76.4 GiB), or lower trainer.mesh.replicate to 4."


def test_split_layers_keep_a_part_of_their_activations():
    whole, split = (judged("trainer.microBatchTokens=4096", f"trainer.mesh.tensor={parts}")[1] for parts in (1, 2))
    assert "4,096 tokens on 8 GPUs, 2 to a layer: 15.3 GiB weights" in split["a trainer's GPU"]
    assert whole["a trainer's GPU"] != split["a trainer's GPU"]


def test_split_rows_leave_a_rank_its_own_tokens():
    whole, split = (judged("trainer.microBatchTokens=4096", f"trainer.mesh.context={parts}")[1] for parts in (1, 2))
    assert "4,096 tokens on 8 GPUs, 2 to a row: 15.3 GiB weights" in split["a trainer's GPU"]
    all_tokens, own = (
        float(lines["a trainer's GPU"].split(" GiB activations")[0].split()[-1]) for lines in (whole, split)
    )
    assert own == pytest.approx(all_tokens / 2, abs=0.06)


def test_a_server_without_room_for_one_sample_is_refused():
    config = {**QWEN3_8B, "num_hidden_layers": 400}
    assert "server-does-not-fit" in judged(config=config)[0]


def test_a_volume_that_holds_no_checkpoint_is_refused_with_its_size():
    findings, _ = judged("storage.size=20Gi")
    assert findings["disk-too-small"].fix == "Raise storage.size to 321Gi, or lower checkpoint.keep."


@pytest.mark.parametrize(("memory", "held"), [("", "2 GiB, holds 7,281 tokens"), ("1Gi", "1 GiB, holds 3,640 tokens")])
def test_the_embedded_engines_cache_is_told_and_is_the_jobs(memory, held):
    engine = [f"generation.engine.cacheMemory={memory}"] if memory else []
    findings, lines = memory_of(load_job(CORPUS / "small-dataset.yaml", engine), QWEN3_8B)
    assert not findings
    assert held in dict(lines)["a server's cache"]


@pytest.mark.parametrize(
    ("overrides", "wrong"),
    [
        (("cacheMemory=900Gi",), "its cache may take 900 GiB, and this machine has 16 GiB"),
        (("cacheMemory=10Gi", "2"), "the caches of 2 servers may take 20 GiB, and this machine has 16 GiB"),
        (("cacheMemory=16Gi",), None),
        (("cacheMemory=2Gi", "32"), None),  # the default is no wish of the job's
    ],
)
def test_caches_beyond_the_machines_memory_are_refused(overrides, wrong):
    engine, servers = overrides[0], (overrides[1:] or ("1",))[0]
    fields = [f"generation.engine.{engine}", f"generation.replicas={servers}"]
    found = caches_of(load_job(CORPUS / "small-dataset.yaml", fields), 16 << 30)
    assert [finding.message for finding in found] == ([wrong] if wrong else [])


@pytest.mark.parametrize("config", [{"model_type": "mamba"}, {}])
def test_nothing_is_guessed_of_unknown_families(config):
    assert memory_of(load_job(CORPUS / "gpus.yaml"), config) == ([], [])


def test_a_policy_is_planned_with_its_teacher():
    cards = ["trainer.gpus=8", "trainer.gpuMemory=79.5Gi", "trainer.recompute=full"]
    job = load_job(CORPUS / "on-policy-distillation.yaml", cards)
    alone, both = (dict(memory_of(job, QWEN3_8B, teacher)[1])["a trainer's GPU"] for teacher in (None, QWEN3_8B))
    assert "the teacher's share" in both
    assert "teacher" not in alone


def test_a_student_is_planned_with_its_teacher_and_no_server_and_its_longest_row_is_the_knob():
    cards = ["trainer.gpus=8", "trainer.gpuMemory=79.5Gi", "trainer.recompute=full"]
    rows = ["training.maxTokens=262144", "trainer.microBatchTokens=262144"]
    job = load_job(CORPUS / "distillation.yaml", [*cards, *rows])
    alone, both = (memory_of(job, QWEN3_8B, teacher) for teacher in (None, QWEN3_8B))
    pods = {"host memory, a trainer pod", "shared memory, a trainer pod"}
    assert {subject for subject, _ in both[1]} == {"a trainer's GPU", "disk", *pods}
    assert "the teacher's share" in dict(both[1])["a trainer's GPU"]
    assert "teacher" not in dict(alone[1])["a trainer's GPU"]
    (refused,) = both[0]
    assert refused.fix.startswith("Lower training.maxTokens and trainer.microBatchTokens")


REFERENCE = ["algorithm.kl={coefficient: 0.05}"]


def test_a_reference_that_does_not_fit_is_refused_with_its_share_and_the_field_that_asks_for_it():
    rows = ["trainer.recompute=full", "trainer.microBatchTokens=1024", "rollout.maxSampleTokens=1024"]
    room = ["trainer.gpus=2", "trainer.gpuMemory=76Gi"]
    assert "does-not-fit" not in judged(*rows, *room)[0]
    refused = judged(*rows, *room, *REFERENCE)[0]["does-not-fit"]
    assert "15.3 GiB the KL reference's share" in refused.message
    assert refused.fix == (
        "Set trainer.optimizerState to bfloat16 (69.5 GiB), or train on 4 GPUs (trainer.replicas 2), or set "
        "algorithm.kl.placement: offloaded, or train an adapter (trainer.lora), whose base is the reference, or "
        "without one (algorithm.kl)."
    )
    adapted = judged(*rows, *room, *REFERENCE, "trainer.lora={rank: 8}")
    assert "does-not-fit" not in adapted[0]
    assert "reference" not in adapted[1]["a trainer's GPU"]


def test_an_offloaded_reference_fits_and_its_host_memory_is_told():
    rows = ["trainer.recompute=full", "trainer.microBatchTokens=1024", "rollout.maxSampleTokens=1024"]
    cards = ["trainer.gpus=2", "trainer.gpuMemory=76Gi"]
    findings, lines = judged(*rows, *cards, "algorithm.kl={coefficient: 0.05, placement: offloaded}")
    assert "does-not-fit" not in findings
    assert "reference" not in lines["a trainer's GPU"]
    assert "30.5 GiB frozen models between uses, pinned" in lines["host memory, a trainer pod"]


def test_an_offloaded_teacher_that_is_larger_is_planned_as_it_is_asked():
    cards = ["trainer.gpus=8", "trainer.gpuMemory=79.5Gi", "trainer.recompute=full"]
    job = load_job(CORPUS / "on-policy-distillation.yaml", [*cards, "algorithm.teacher.placement=offloaded"])
    large = {**QWEN3_8B, "num_hidden_layers": 144}
    lines = dict(memory_of(job, QWEN3_8B, large)[1])
    assert "the teacher's share while it is asked" in lines["a trainer's GPU"]
    assert "without gradients" in lines["a trainer's GPU"]


def test_a_critic_that_does_not_fit_is_refused_with_its_share():
    rows = ["trainer.recompute=full", "trainer.microBatchTokens=1024", "rollout.maxSampleTokens=1024"]
    refused = judged(*rows, "trainer.gpus=2", "trainer.gpuMemory=90Gi", "algorithm.name=PPO", "algorithm.groupSize=1")
    assert "42.3 GiB the critic's share with its optimizer" in refused[0]["does-not-fit"].message
    assert refused[0]["does-not-fit"].fix.endswith("or name an algorithm without a critic.")


def test_of_dpo_no_second_model_is_planned():
    cards = ["trainer.gpus=8", "trainer.gpuMemory=79.5Gi", "trainer.recompute=full"]
    lines = dict(memory_of(load_job(CORPUS / "dpo.yaml", cards), QWEN3_8B)[1])
    assert "reference" not in lines["a trainer's GPU"]
    assert "no second model is held" in lines["DPO's reference"]


def test_a_pod_for_both_asks_for_the_memory_of_both_and_of_versions_that_are_handed_over_in_it():
    def planned(*overrides):
        return pods_of(load_job(CORPUS / "gpus.yaml", [*EIGHT_CARDS, *ONE_CARD, *overrides]), QWEN3_8B)

    shared, separate = planned(), planned("placement=separate")
    assert shared.keys() == {"trainer"}
    assert separate.keys() == {"trainer", "generation"}
    assert shared["trainer"] >= separate["trainer"] + separate["generation"] - 2 * GIB
    handed = planned("weightSync.mode=Auto")["trainer"] - shared["trainer"]
    assert handed >= 3 * 15.2 * GIB, "three versions of eight billion parameters in bfloat16"


def test_requests_at_once_follow_from_a_servers_cache_and_a_job_that_names_them_is_left_alone():
    def running(*overrides: str) -> int | None:
        return running_of(load_job(CORPUS / "gpus.yaml", [*EIGHT_CARDS, *overrides]), QWEN3_8B)

    def said(*overrides: str) -> str:
        return judged(*overrides)[1]["a server's GPU"]

    one = ("generation.engine.tensorParallel=1", "generation.engine.gpus=1")
    short, long = ("rollout.maxSampleTokens=1024", *one), ("rollout.maxSampleTokens=32768", *one)
    assert running(*short) == 512, "beyond, a step of decoding only takes longer"
    cache = int(re.search(r"holds ([\d,]+) tokens", said(*long))[1].replace(",", ""))
    assert running(*long) == cache // (32768 // 2) < 128
    assert said(*long).endswith(f"it decodes {running(*long)} at once")
    assert running(*long, "generation.engine.maxRunningRequests=77") is None
    assert said(*long, "generation.engine.maxRunningRequests=77").endswith("it decodes 77 at once")
    assert running("trainer.gpuMemory=null") is None, "nothing is planned"
    assert running_of(load_job(CORPUS / "quickstart.yaml", []), QWEN3_8B) is None, "the embedded engine's is its own"
