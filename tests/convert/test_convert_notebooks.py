"""Notebooks, Unsloth's and older TRL's: which training it is, its rows, its model and its adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from areal.convert.convert import convert, job_text
from areal.convert.draft import JobDraft
from areal.errors import ConfigError
from areal.spec.load import job_from
from areal.yaml_file.document import parse_document

UNSLOTH = """
from unsloth import FastLanguageModel, is_bfloat16_supported
length, rank = 512, 16
model, tokenizer = FastLanguageModel.from_pretrained(model_name="org/base", max_seq_length=length, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(
    model, r=rank, lora_alpha=rank * 2, target_modules=["q_proj", "v_proj"], use_gradient_checkpointing="unsloth"
)
"""
FIRST = """
from datasets import load_dataset
rows = load_dataset("org/begin", split="cot")
rows = rows.map(lambda row: {"text": row["a"]})
from trl import SFTConfig, SFTTrainer
SFTTrainer(
    model=model,
    train_dataset=rows,
    args=SFTConfig(learning_rate=2e-4, per_device_train_batch_size=7, warmup_steps=5, seed=3407),
).train()
"""
THEN = """
def questions(split="train"):
    data = load_dataset("org/questions", "main")[split]
    return data.map(lambda row: {"prompt": row["q"]}).filter(lambda row: row["prompt"])
rows = questions()
from trl import GRPOConfig, GRPOTrainer
from vllm import SamplingParams
drawn = SamplingParams(min_p=0.1)
args = GRPOConfig(
    learning_rate=5e-6, per_device_train_batch_size=8, num_generations=4, max_steps=9, max_prompt_length=200,
    max_completion_length=length - 200, vllm_sampling_params=drawn, bf16=is_bfloat16_supported(),
    fp16=not is_bfloat16_supported(),
)
trainer = GRPOTrainer(model=model, reward_funcs=[exact], args=args, train_dataset=rows)
trainer.train()
"""


def notebook(path: Path, *cells: str) -> Path:
    """As Jupyter writes it: lines of code cells, words beside them."""
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": []} for cell in cells]
    words = {"cell_type": "markdown", "source": ["# GRPOConfig(learning_rate=1)\n"]}
    path.write_text(json.dumps({"cells": [words, *made], "metadata": {}, "nbformat": 4}))
    return path


def script(path: Path, *parts: str) -> JobDraft:
    path.write_text("\n".join(parts))
    return convert(path)


def test_of_several_trainings_the_last_ones_own_numbers_rows_and_model_are_read(tmp_path: Path) -> None:
    """Unsloth's notebooks warm up by SFT: its learning rate and its rows were the job's, and the adapter was lost."""
    draft = convert(notebook(tmp_path / "n.ipynb", UNSLOTH, FIRST, THEN))
    spec = draft.spec
    assert spec["model"] == {"uri": "hf://org/base"}
    assert spec["dataset"]["train"]["huggingFace"] == {"path": "org/questions", "name": "main"}
    assert spec["trainer"]["lora"] == {"rank": 16, "alpha": 32.0, "targets": ["q_proj", "v_proj"]}
    assert (spec["optimizer"]["learningRate"], spec["algorithm"]["batchSize"]) == (5e-6, 2)
    assert (spec["rollout"]["sampling"]["maxNewTokens"], spec["trainer"]["precision"]) == (312, "bfloat16")
    assert "seed" not in spec
    assert spec["optimizer"]["warmupSteps"] == 0
    assert draft.decisions == [
        "recipe.py: bring the reward functions that the script gives: exact",
        "rollout.sampling: SamplingParams(min_p=0.1) there",
        "model.path: the script trains by SFTConfig, too: start from what that makes, where it comes first",
        "dataset.train: rows go through filter and map there; a `dataset(split)` of the recipe can do that",
    ]


def test_one_training_of_the_same_kinds_is_read_by_itself(tmp_path: Path) -> None:
    draft = script(tmp_path / "a.py", UNSLOTH, FIRST)
    assert draft.spec["dataset"]["train"]["huggingFace"] == {"path": "org/begin", "split": "cot"}
    assert (draft.spec["training"]["name"], draft.spec["optimizer"]["learningRate"]) == ("SFT", 2e-4)
    assert not any(decided.startswith("model.path") for decided in draft.decisions)


@pytest.mark.parametrize(
    "line",
    [
        "!pip install trl \\\n  vllm==0.9",
        "%cd /content",
        "%%capture\nimport os",
        "%%bash\nfor f in *; do echo $f; done",
        "if True:\n    !pip install trl\nelse:\n    %pip install x",
        "?GRPOConfig",
        "said = ('%s'\n    % 1)",
    ],
)
def test_lines_of_a_notebooks_shell_change_nothing(line: str, tmp_path: Path) -> None:
    plain = job_text(convert(notebook(tmp_path / "n.ipynb", UNSLOTH, "from datasets import load_dataset", THEN)))
    cells = (line, UNSLOTH, "from datasets import load_dataset", line, THEN, line)
    assert job_text(convert(notebook(tmp_path / "n.ipynb", *cells))) == plain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no notebook"),
        ('{"cells": [{"source": 1}]}', "is no notebook"),
        ('{"cells": [{"cell_type": "code", "source": "a b"}]}', "is no Python"),
        ('{"cells": [{"cell_type": "code", "source": "import trl"}]}', "configures no training of TRL"),
        ('{"cells": []}', "no configuration or launch script"),
    ],
)
def test_what_is_no_training_is_refused_in_words(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text(text)
    with pytest.raises(ConfigError, match=said):
        convert(tmp_path / "n.ipynb")


def test_arguments_of_transformers_are_an_older_trls(tmp_path: Path) -> None:
    draft = script(
        tmp_path / "old.py",
        "from datasets import load_dataset\nfrom transformers import AutoModelForCausalLM, TrainingArguments",
        "from trl import SFTTrainer",
        'model = AutoModelForCausalLM.from_pretrained(pretrained_model_name_or_path="org/m", device_map="auto")',
        'args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=3)',
        'rows = {"train": load_dataset("org/rows")}',
        'SFTTrainer(model, args=args, train_dataset=rows["train"], max_seq_length=777).train()',
        'from peft import AutoPeftModelForCausalLM\nAutoPeftModelForCausalLM.from_pretrained("out").merge_and_unload()',
    )
    assert draft.spec["model"] == {"uri": "hf://org/m"}
    assert draft.spec["training"] == {"name": "SFT", "batchSize": 4, "maxTokens": 777, "maxSteps": 3}
    assert draft.spec["optimizer"]["learningRate"] == 5e-5, "transformers' default, not TRL's"
    assert draft.spec["dataset"]["train"]["huggingFace"] == {"path": "org/rows"}


def test_arguments_of_another_trainer_beside_trls_own_are_not_its(tmp_path: Path) -> None:
    draft = script(
        tmp_path / "a.py",
        "from transformers import Trainer, TrainingArguments\nfrom trl import SFTConfig, SFTTrainer",
        'Trainer("org/judge", args=TrainingArguments(learning_rate=1, max_steps=1, seed=5))',
        'SFTTrainer("org/m", args=SFTConfig(max_steps=3))',
    )
    assert (draft.spec["optimizer"]["learningRate"], draft.spec["training"]["maxSteps"]) == (2e-5, 3)
    assert "seed" not in draft.spec


def test_a_quantised_start_model_is_a_decision(tmp_path: Path) -> None:
    text = 'from trl import SFTConfig, SFTTrainer\nSFTTrainer(model="org/m{}", args=SFTConfig(max_steps=3))'
    plain, quantised = (script(tmp_path / "a.py", text.format(name)) for name in ("-4b", "-unsloth-bnb-4bit"))
    more = set(quantised.decisions) - set(plain.decisions)
    assert more == {"model.uri: its weights are quantised; name the model that they were made of"}


@pytest.mark.parametrize("name", ["n", "y", "no", "on", "12", "null"])
def test_a_name_that_yaml_takes_for_something_else_is_quoted(name: str, tmp_path: Path) -> None:
    draft = script(
        tmp_path / f"{name}.py", "from trl import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(max_steps=3))"
    )
    assert not [decided for decided in draft.decisions if "metadata" in decided]
    text = "\n".join(line for line in job_text(draft).splitlines() if not line.startswith("# decide:"))
    assert job_from(parse_document(text, tmp_path / "job.yaml")).metadata.name == draft.name


@pytest.mark.timeout(20)
def test_names_that_are_given_many_values_are_followed_in_time(tmp_path: Path) -> None:
    many = "\n".join(f"a = a + b + {at}\nb = b.filter(a).map(a, b)" for at in range(300))
    draft = script(
        tmp_path / "a.py",
        "from datasets import load_dataset\nfrom trl import SFTConfig, SFTTrainer\na, b = 1, 2",
        f'{many}\nload_dataset("org/a")\nSFTTrainer(model="org/m", args=SFTConfig(max_steps=3), train_dataset=b)',
    )
    assert draft.spec["dataset"]["train"]["huggingFace"] == {"path": "org/a"}
    assert not any(decided.startswith("dataset") for decided in draft.decisions)


def test_rows_of_a_trainer_that_nothing_loads_are_the_first_that_are(tmp_path: Path) -> None:
    draft = script(
        tmp_path / "a.py",
        'from datasets import load_dataset\nfrom trl import SFTConfig, SFTTrainer\nload_dataset("org/a")\n'
        'load_dataset("org/b")\nSFTTrainer(model="org/m", args=SFTConfig(max_steps=3), train_dataset=given)',
    )
    assert draft.spec["dataset"]["train"]["huggingFace"] == {"path": "org/a"}
