"""docs/migration.md on files as the other projects lay them out: its commands, its recipes, its jobs.

The layouts are those of volcengine/verl (examples/data_preprocess/gsm8k.py, examples/grpo_trainer/run_qwen3-8b.sh),
inclusionAI/AReaL (examples/math/gsm8k_grpo.yaml, areal/reward/gsm8k.py), huggingface/trl (examples/scripts/gspo.py,
its README's GRPO), NovaSky-AI/SkyRL (examples/train/gsm8k), PrimeIntellect-ai/prime-rl (examples/basic/reverse-text)
and NVIDIA-NeMo/RL (examples/configs/grpo_math_1B.yaml).
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from areal.admit.verdict import admit
from areal.cli.main import app
from areal.convert.convert import convert
from areal.data.adapters import read_rows
from areal.data.source import source_from_spec
from areal.errors import ConfigError
from areal.spec.block import fields_of
from areal.spec.job import JobSpec
from areal.spec.load import load_job
from areal.workflow.recipe import load_recipe
from support.char_tokenizer import TEMPLATE, write_tokenizer
from support.tiny_job import make_model
from typer.testing import CliRunner

from tools.doc_blocks import ROOT, DocBlock, blocks_of, commands_of

BLOCKS = blocks_of(ROOT / "docs/migration.md")

AREAL = """
experiment_name: sums-grpo
trial_name: first
total_train_epochs: 2
tokenizer_path: ${actor.path}
cluster: {n_nodes: 1, n_gpus_per_node: 8, fileroot: /tmp/areal, name_resolve: {type: nfs}}
rollout:
  backend: "sglang:d4p1t1"
  max_concurrent_rollouts: 256
  consumer_batch_size: ${train_dataset.batch_size}
  max_head_offpolicyness: 2
  tokenizer_path: ${tokenizer_path}
gconfig: {n_samples: 4, max_new_tokens: 1024, greedy: false, temperature: 1.0}
actor:
  backend: "fsdp:d4p1t1"
  path: Qwen/Qwen2.5-1.5B-Instruct
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.70e-5, weight_decay: 0.017, lr_scheduler_type: constant, gradient_clipping: 1.0}
  eps_clip: 0.4
  kl_ctl: 0.0
  ppo_n_minibatches: 1
  recompute_logprob: true
  use_decoupled_loss: true
  rejection_sampling: {metric: ratio, upper: 5.0}
  adv_norm: {mean_level: batch, std_level: batch}
train_dataset: {batch_size: 256, path: openai/gsm8k, type: rl, max_length: 1024}
valid_dataset: {batch_size: 256, path: openai/gsm8k, type: rl}
"""
VERL = """set -x

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=data/gsm8k/train.parquet \\
    data.val_files=data/gsm8k/test.parquet \\
    data.train_batch_size=4 \\
    data.max_prompt_length=40 \\
    data.max_response_length=20 \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=models/tiny \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=2 \\
    actor_rollout_ref.actor.use_kl_loss=False \\
    actor_rollout_ref.rollout.name=sglang \\
    actor_rollout_ref.rollout.n=5 \\
    algorithm.use_kl_in_reward=False \\
    trainer.experiment_name='eight' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=${NNODES:-4} \\
    trainer.total_epochs=15 $@
"""
TRL = '''"""
accelerate launch grpo.py --model_name_or_path Qwen/Qwen3-0.6B --output_dir deepmath --learning_rate 1e-5 \\
    --per_device_train_batch_size 8 --num_generations 8 --max_steps 50
"""
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
from trl.rewards import accuracy_reward

if __name__ == "__main__":
    script_args, training_args, model_args = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path, args=training_args, reward_funcs=[accuracy_reward],
        train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
    )
    trainer.train()
'''  # noqa: E501
NOTEBOOK = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="notebook", per_device_train_batch_size=8, num_generations=8, max_steps=5)
GRPOTrainer("Qwen/Qwen3-0.6B", reward_funcs=len, args=args, train_dataset=load_dataset("org/rows", split="train"))
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A directory with the files that the page's commands name, and with rows of verl's layout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("gsm8k_grpo.yaml", AREAL), ("run_qwen3-8b.sh", VERL), ("grpo.py", TRL)):
        (tmp_path / name).write_text(text)
    cells = [{"cell_type": "code", "source": cell} for cell in ("!pip install trl\n", NOTEBOOK)]
    (tmp_path / "qwen3_grpo.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "data/gsm8k").mkdir(parents=True)
    for split in ("train", "test"):
        write_rows(tmp_path / f"data/gsm8k/{split}.parquet", split, "reward_model")
    make_model(tmp_path / "models/tiny", vocabulary=32)
    config = (tmp_path / "models/tiny/config.json").read_text()
    write_tokenizer(tmp_path / "models/tiny", "0123456789=+ ", template=TEMPLATE)
    (tmp_path / "models/tiny/config.json").write_text(config.replace('"eos_token_id": 11', '"eos_token_id": 1'))
    return tmp_path


def write_rows(path: Path, split: str, place: str) -> None:
    """Sums as verl's preprocessing lays GSM8K out; SkyRL's has the answer at another `place`."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{number}+1="}],
            "ability": "math",
            place: {"style": "rule", "ground_truth": str(number + 1)},
            "extra_info": {"split": split, "index": number, "answer": f"#### {number + 1}", "question": f"{number}+1="},
        }
        for number in range(8)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_the_commands_of_the_page_convert_files_of_these_layouts(home):
    for words in commands_of(BLOCKS[0].text):
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, done.output
        assert [title in done.output for title in ("carried (", "meaning differs (", "dropped (")] == [True] * 3
    made = {path.parent.name: undecided(path).spec for path in home.glob("*/job.yaml")}
    assert made["sums-grpo-first"].algorithm.batch_size == 256
    assert made["sums-grpo-first"].algorithm.max_steps == 2 * (7473 // 256)
    assert made["notebook"].algorithm.max_steps == 5
    verl = made["eight"]
    assert (verl.algorithm.group_size, verl.algorithm.mini_batches, verl.algorithm.max_staleness) == (5, 2, 0)
    assert verl.algorithm.max_steps == 15 * (7473 // 4)
    assert verl.reward.answer_field == "reward_model.ground_truth"


def undecided(path: Path) -> Any:
    """The job without the lines that its author has to decide."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("# decide:")]
    path.write_text("\n".join(lines) + "\n")
    return load_job(path)


def test_what_is_made_of_verls_script_reads_verls_rows(home):
    assert CliRunner().invoke(app, ["convert", "run_qwen3-8b.sh", "NNODES=1", "--out", "sums"]).exit_code == 0
    undecided(home / "sums/job.yaml")
    here = ["generation={engine: {type: embedded}}", "trainer={}"]
    verdict = admit(load_job(home / "sums/job.yaml", here), home)
    assert verdict.faults == ()
    assert "reward_model.ground_truth" not in " ".join(finding.message for finding in verdict.findings)


def test_verls_reward_scores_rows_of_verls_own_layout(home):
    (home / "my_verl_rewards.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert (data_source, extra_info['split']) == ('openai/gsm8k', 'train')\n"
        "    return {'score': 1.0}['score'] if solution_str == ground_truth else 0.0\n"
    )
    reward = load_recipe(recipe_of("from my_verl_rewards", home)).reward
    (job,) = [block.text for block in BLOCKS if "name: from-verl" in block.text]
    (home / "data/train.parquet").write_bytes((home / "data/gsm8k/train.parquet").read_bytes())
    (home / "job.yaml").write_text(job)
    rows = rows_of(load_job(home / "job.yaml").spec, home)
    assert all(isinstance(row.pop("prompt"), list) for row in rows), "a chat, which the reward is given as text"
    assert [reward("", "5", [], [], **row) for row in rows] == [float(number == 4) for number in range(8)]


def rows_of(spec: JobSpec, home: Path) -> list[dict[str, Any]]:
    source = source_from_spec(spec.dataset.train, base_dir=home, recipe=None, split="train")
    return [dict(row) for _, row, *_ in read_rows(source)]


def recipe_of(begins: str, folder: Path) -> Path:
    (source,) = [block.text for block in BLOCKS if block.language == "python" and block.text.startswith(begins)]
    (folder / "recipe.py").write_text(source)
    return folder / "recipe.py"


def test_the_recipe_on_the_page_runs_areals_reward_and_workflow(home):
    (home / "my_rewards.py").write_text(
        "from areal.utils import logging\n"
        "logger = logging.getLogger('sums')\n"
        "def reward_fn(prompt, completions, prompt_ids, completion_ids, answer, **kwargs) -> float:\n"
        "    return float(str(completions) == str(answer))\n"
    )
    (home / "my_workflow.py").write_text(
        "from areal.api import RolloutWorkflow\n"
        "class MyWorkflow(RolloutWorkflow):\n"
        "    def __init__(self, reward_fn, gconfig, tokenizer, enable_thinking=False): self.reward_fn = reward_fn\n"
        "    async def arun_episode(self, engine, data): return None\n"
    )
    recipe = load_recipe(recipe_of("from areal.workflow.upstream", home))
    assert recipe.reward("1+1=", "2", [1], [2], answer="2", messages=[]) == 1.0
    assert recipe.workflows.keys() == {"Mine"}


def snippets() -> list[tuple[DocBlock, DocBlock]]:
    """Each foreign snippet with the job beside it."""
    return [
        (there, here)
        for there, here in pairwise(BLOCKS)
        if "kind: RLJob" in here.text and "kind: RLJob" not in there.text and there.language != "bash"
    ]


@pytest.mark.parametrize(("there", "here"), snippets(), ids=["areal", "verl", "trl"])
def test_what_stands_beside_a_foreign_snippet_is_what_convert_makes_of_it(there, here, tmp_path):
    file = tmp_path / ("theirs.py" if there.language == "python" else "theirs.yaml")
    script = "from trl import GRPOConfig, GRPOTrainer\nargs = {}GRPOTrainer(model='models/qwen3', args=args)\n"
    file.write_text(script.format(there.text) if there.language == "python" else there.text)
    made = flat(convert(file).spec)
    decided = ("algorithm.maxSteps", "rollout.maxSampleTokens")  # of rows and prompts, which no snippet has
    shown = {field: value for field, value in flat(yaml.safe_load(here.text)["spec"]).items() if field not in decided}
    differing = {field for field in made.keys() & shown.keys() if as_number(shown[field]) != made[field]}
    assert differing == set()
    assert len(made.keys() & shown.keys()) >= 6


def flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {path + name: value}
    return found


def as_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e-\d+", value) else value


def test_verls_yaml_keeps_its_group_size_though_n_is_a_truth_to_a_cluster(tmp_path):
    (tmp_path / "verl.yaml").write_text(
        "actor_rollout_ref: {model: {path: a/b}, rollout: {n: 8}}\ndata: {train_batch_size: 64}\n"
    )
    assert convert(tmp_path / "verl.yaml").spec["algorithm"]["groupSize"] == 8


def test_skyrls_rows_have_their_answer_where_the_page_says(home):
    write_rows(home / "data/train.parquet", "train", "reward_spec")
    assert "`columns: {answer: reward_spec.ground_truth}`" in (ROOT / "docs/migration.md").read_text()
    train = {"huggingFace": {"path": "data/train.parquet", "columns": {"answer": "reward_spec.ground_truth"}}}
    spec = JobSpec.model_validate({"model": {"path": "m"}, "dataset": {"train": train}})
    rows = rows_of(spec, home)
    assert [row["answer"] for row in rows] == [str(number + 1) for number in range(8)]


def test_fields_of_the_table_for_others_are_there():
    (table,) = [part for part in (ROOT / "docs/migration.md").read_text().split("\n\n") if "| prime-rl (TOML)" in part]
    named = [re.findall(r"`([a-z]+\.[A-Za-z.]+)[:`]", row.rsplit("|", 2)[1]) for row in table.splitlines()[2:]]
    assert len(named) >= 12
    for field in (field for fields in named for field in fields):
        assert exists(field.split(".")), field


def exists(path: list[str]) -> bool:
    block: Any = JobSpec
    for name in path:
        fields = fields_of(block)
        if name not in fields:
            return False
        inner = fields[name].annotation
        block = next((one for one in (inner, *getattr(inner, "__args__", ())) if hasattr(one, "model_fields")), None)
    return True


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rl.toml", 'max_steps = 20\n[model]\nname = "a/b"\n[orchestrator]\nbatch_size = 128\n'),
        ("run_gsm8k.sh", "uv run -m skyrl.train.entrypoints.main_base trainer.train_batch_size=1024\n"),
        ("grpo.yaml", "grpo: {num_prompts_per_step: 32}\npolicy: {model_name: a/b}\ncluster: {num_nodes: 1}\n"),
    ],
)
@pytest.mark.parametrize("command", ["check", "convert", "run"])
def test_a_file_of_others_is_told_where_its_fields_are(name, text, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    done = CliRunner().invoke(app, [command, name])
    assert isinstance(done.exception, ConfigError)
    assert "docs/migration.md" in done.exception.fix


@pytest.mark.parametrize("name", ["gsm8k_grpo.yaml", "run_qwen3-8b.sh", "grpo.py"])
def test_check_of_a_file_that_can_be_converted_says_so(name, home):
    done = CliRunner().invoke(app, ["check", name])
    assert isinstance(done.exception, ConfigError)
    assert "areal convert" in done.exception.fix
