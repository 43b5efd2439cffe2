"""A mixture of experts, by both engines, and a hybrid learn the quickstart's task with the engine killed once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from areal_trainer.init_model import make_tokenizer
from areal_view.index.token_audit import audit_tokens
from support.job_run import VICTIMS, JobRun
from transformers import AutoConfig, AutoModelForCausalLM

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1500)]

SIZES = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
}  # fmt: skip
FAMILIES = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    "qwen3_5_text": {
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
}  # fmt: skip


def made(out: Path, family: str) -> Path:
    """A start model of random weights with the quickstart's tokenizer."""
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family], **ids, vocab_size=len(tokenizer))
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


@pytest.mark.parametrize(
    ("family", "engine"),
    [
        ("qwen3_moe", "embedded"),
        ("qwen3_5_text", "embedded"),
        pytest.param("qwen3_moe", "sglang", marks=pytest.mark.sglang_real),
    ],
)
def test_a_family_with_experts_or_states_learns(
    family: str, engine: str, start_job: Callable[..., JobRun], tmp_path: Path
) -> None:
    start = made(tmp_path / "start", family)
    taught = start_job(f"model.path={start}", "training.maxSteps=115", job="examples/sft.yaml", small=())
    assert taught.finish(timeout_s=600) == 0, taught.output[-4000:]
    more = (
        "recording.tokenAudit=true",
        "algorithm.batchSize=32",
        "algorithm.maxSteps=60",
        "evaluation.intervalSteps=20",
        "evaluation.rows=200",
        f"generation.engine.type={engine}",
    )
    run = start_job(f"model.path={taught.run_dir / 'model'}", *more)
    run.wait_for("step 20", lambda: run.step() >= 20, timeout_s=600)
    run.kill(*(VICTIMS["engine"] if engine == "embedded" else ("areal.engine.sglang_cpu",)))
    assert run.finish(timeout_s=800) == 0, run.output[-4000:]
    audit = run.audit()
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (60 * 32, 0, 0)
    report = audit_tokens(run.run_dir)
    assert report.ok, report.examples
    assert report.equal == report.trained
    rewards = [row["reward_mean"] for row in run.metrics()]
    print(family, [round(sum(rewards[at : at + 10]) / 10, 3) for at in range(0, 60, 10)])
    assert sum(rewards[-10:]) / 10 >= sum(rewards[:10]) / 10 + 0.1
    apart = [row["logprob_mismatch"] for row in run.metrics() if row["logprob_mismatch"] is not None]
    print(family, [f"{each:.1g}" for each in apart])
    assert apart
    # Float32 on both sides, in modules of one library; but what came before a swap was computed anew under the new
    # weights, and may have gone to other experts than those that it was sampled with.
    assert sorted(apart)[len(apart) // 2] <= 1e-4
    assert max(apart) <= (0.02 if family == "qwen3_moe" else 1e-4)
