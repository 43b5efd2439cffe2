"""What is read of a shell script, of interpolations, of allocation strings and of Python, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from areal.convert.convert import convert
from areal.convert.draft import UNSET
from areal.convert.from_areal import parse_allocation
from areal.convert.read import read_calls, resolved
from areal.convert.shell import read_commands
from areal.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st

HERE = Path("there.yaml")


def words(text, **variables):
    """The last command of a script."""
    return read_commands(text, variables)[True][-1]


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("run a=1 'b c' \"d  e\" f\\ g", ["run", "a=1", "b c", "d  e", "f g"]),
        ("X=1; run $X ${X}2 '$X' \"$X\"", ["run", "1", "12", "$X", "1"]),
        ("X='a b'\nrun $X \"$X\"", ["run", "a", "b", "a b"]),
        ("run ${X:-d} ${X:=e} \"${Y:-$HOME/x}\"", ["run", "d", "e", "/h/x"]),
        ("X=a.b.c\nrun ${X%.*} ${X##*.} ${X//./-} ${X/a/z}", ["run", "a.b", "c", "a-b-c", "z.b.c"]),
        ("A=4\nrun $((A * (2 + 1))) $(( 7 / 2 )) $(($A % 3))", ["run", "12", "3", "1"]),
        ("A=(x 'y z' # note\n  w)\nA+=(v)\nrun \"${A[@]}\" ${A[1]}", ["run", "x", "y z", "w", "v", "y", "z"]),
        ("A=x\nA+=y\nrun $A", ["run", "xy"]),
        ("run a=1 \\\n  b=2 \\\n  c=3 # end", ["run", "a=1", "b=2", "c=3"]),
        ("run a > log 2>&1 < in", ["run", "a"]),
        ("E=\"\nk=1 \\\n  k=2\"\nrun $E $@", ["run", "k=1", "k=2"]),
        ("if [ a == b ]; then X=1; elif [[ -z \"$Q\" ]]; then X=2; else X=3; fi\nrun $X", ["run", "2"]),
        ("if [ 3 -gt 2 ] && [ -n \"\" ]; then X=1; else X=2; fi\nrun $X", ["run", "2"]),
        ("if [[ $1 != \"slurm\" ]]; then\n  run a\nfi", ["run", "a"]),
        ("read -r -d '' X <<EOF\nrun a \\\n  b\nEOF\n$X", ["run", "a", "b"]),
        ("f() {\n  X=2\n}\nX=1\nrun $X", ["run", "1"]),
        ("export X=5 Y=6\nrun $X $Y", ["run", "5", "6"]),
    ],
)  # fmt: skip
def test_a_script_is_read_as_the_shell_would(script, wanted, monkeypatch):
    monkeypatch.setenv("HOME", "/h")
    assert words(script) == wanted


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("run a=$X", "$X"),
        ("Y=${X}/b\nrun a=$Y", "$X"),
        ("run a=$(date)", "$(date)"),
        ("if some-program; then X=1; fi\nrun a=$X", "$X"),
        ("for X in 1 2; do Y=$X; done\nrun a=$Y", "$Y"),
        ("run a=$((N * 2))", "$N"),
    ],
)
def test_what_a_script_does_not_say_is_marked_by_name(script, name):
    assert f"{UNSET}{name}{UNSET}" in words(script)[1]


def test_variables_from_outside():
    assert words("run $X ${1:-2}", X="5") == ["run", "5", "2"]


@given(st.text(alphabet="ab1 $\"'\\{}()[]@#|;&<>=\n", max_size=60))
def test_no_text_stops_the_reader(text):
    assert all(isinstance(word, str) for command in read_commands(text)[True] for word in command)


def test_arithmetic_is_never_code():
    assert UNSET in words("run $((9**9**9))")[1] or words("run $((9**9**9))")[1].isdigit() is False


@pytest.mark.parametrize(
    ("tree", "wanted"),
    [
        ({"a": 1, "b": "${a}"}, 1),
        ({"a": {"c": [4, 5]}, "b": "${a.c[1]}"}, 5),
        ({"a": {"c": 2}, "b": "${a}"}, {"c": 2}),
        ({"a": "x", "x": 7, "b": "${${a}}"}, 7),
        ({"a": 1, "b": "n-${a}-${a}"}, "n-1-1"),
        ({"a": 1, "b": "\\${a}"}, "${a}"),
        ({"a": 1, "b": "\\\\${a}"}, "\\1"),
        ({"a": True, "b": "on=${a}"}, "on=true"),
        ({"a": "${c}", "c": "${d}", "d": 3, "b": "${a}"}, 3),
        ({"b": "${oc.select:nothing, 5}"}, 5),
        ({"b": "${oc.select:nothing}"}, None),
    ],
)
def test_interpolations(tree, wanted):
    assert resolved(tree, HERE)["b"] == wanted


def test_relative_interpolations():
    assert resolved({"a": {"b": {"c": "${..d}", "e": "${.f}", "f": 2}, "d": 1}}, HERE)["a"]["b"] == {
        "c": 1,
        "e": 2,
        "f": 2,
    }


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": "${b}", "b": "${a}"}, "refers to itself"),
        ({"a": "${oc.decode:HOME}"}, "runs code"),
        ({"a": "${b"}, "no closing brace"),
        ({"defaults": ["base"], "a": 1}, "composes files"),
    ],
)
def test_interpolations_that_are_refused(tree, said):
    with pytest.raises(ConfigError, match=said):
        resolved(tree, HERE)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("sglang.d12p1t1+d4p1t1", [("sglang", 12, 12), ("fsdp", 4, 4)]),
        ("sglang:d4p1t2", [("sglang", 4, 8)]),
        ("fsdp:d4t2c1", [("fsdp", 4, 8)]),
        ("fsdp:t2d4", [("fsdp", 4, 8)]),
        ("vllm[one]:d2t4+megatron[two]:d2p2t2", [("vllm", 2, 8), ("megatron", 2, 8)]),
        ("megatron:(attn:d1p6t1c1|ffn:d1p6t1e1)", [("megatron", 1, 6)]),
        ("sglang:d4 | fsdp:d4", [("sglang", 4, 4), ("fsdp", 4, 4)]),
    ],
)
def test_allocations(text, wanted):
    assert [(part.backend, part.size("d"), part.world) for part in parse_allocation(text)] == wanted


def test_parts_of_an_allocation_that_are_not_here():
    engine, trainer = parse_allocation("sglang:d1t2|megatron:(attn:d1p6t1c1|ffn:d1p6t1e2)")
    assert (engine.colocated, trainer.colocated) == (False, True)
    assert trainer.beyond == "6 pipeline stages and 2 expert groups and attention and experts split apart"


@pytest.mark.parametrize(
    "text", ["", "sglang", "sglang:x4", "cuda:d4", "fsdp:d4d2", "fsdp:d0", "fsdp:d4+", "(attn:d1)"]
)
def test_no_allocation(text):
    with pytest.raises(ConfigError, match="is no allocation"):
        parse_allocation(text)


def test_a_command_with_a_file_and_overrides_of_its_keys(tmp_path):
    (tmp_path / "run.sh").write_text("python3 train.py --config sub/rl.yaml seed=9 gconfig.n_samples=2 a.b=c\n")
    (tmp_path / "rl.yaml").write_text("gconfig: {n_samples: 4}\ntrain_dataset: {path: x/y, batch_size: 8}\nseed: 1\n")
    draft = convert(tmp_path / "run.sh", rows=80)
    assert draft.foreign.framework == "areal"
    assert (draft.spec["seed"], draft.spec["algorithm"]["groupSize"]) == (9, 2)
    assert "a.b" in draft.foreign.values


def test_what_is_given_comes_before_interpolations(tmp_path):
    """An overridden path is everybody's who refers to it, and a resolver that runs code can be replaced."""
    (tmp_path / "rl.yaml").write_text(
        "actor: {path: a/b, backend: 'fsdp:d1'}\nref: {path: '${actor.path}'}\ntokenizer_path: '${oc.decode:X}'\n"
        "train_dataset: {path: '???', batch_size: 8}\ngconfig: {n_samples: 2}\n"
    )
    given = ["actor.path=c/d", "tokenizer_path=${actor.path}", "train_dataset.path=x/y"]
    values = convert(tmp_path / "rl.yaml", None, given, rows=80).foreign.values
    assert (values["ref.path"], values["tokenizer_path"]) == ("c/d", "c/d")
    with pytest.raises(ConfigError, match=r"\?\?\? \(for train_dataset.path\)"):
        convert(tmp_path / "rl.yaml", None, given[:2])


@pytest.mark.parametrize(("name", "kind"), [("my-dpo.yaml", "DPO"), ("sft_config.yaml", "SFT"), ("run.yaml", "SFT")])
def test_a_yaml_file_of_trl_is_of_the_training_that_its_name_says(name, kind, tmp_path):
    (tmp_path / name).write_text("model_name_or_path: a/b\ndataset_name: x/y\nmax_steps: 5\nnum_processes: 2\n")
    draft = convert(tmp_path / name)
    assert draft.spec["training"]["name"] == kind
    assert any("doesn't say which one" in what for what in draft.decisions) == (name == "run.yaml")


def test_python_is_read_and_computed_values_are_marked():
    text = "from trl import SFTConfig\nN = 4\nSFTConfig(a=N, b=-1, c=[N, 'x'], d=N * M, e=args.f, **{'g': True})"
    values = read_calls(text, HERE).values
    assert values == {"a": 4, "b": -1, "c": [4, "x"], "d": f"{UNSET}N * M{UNSET}", "g": True}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("args.size if args.size else args.group * 4", 32),
        ("args.group if args.group > 4 else 1", f"{UNSET}args.group if args.group > 4 else 1{UNSET}"),
        ("args.group or 100", 8),
        ("args.size or 100", 100),
        ("elsewhere() or 100", 100),
        ("args.size or args.group or 3", 8),
        ("0.5 * args.group - 1", 3.0),
        ("args.file if args.file else 'none'", f"{UNSET}args.file if args.file else 'none'{UNSET}"),
        ("args.group // 0", f"{UNSET}args.group // 0{UNSET}"),
        ("'a' * args.group", f"{UNSET}'a' * args.group{UNSET}"),
    ],
)
def test_a_script_s_sums_and_choices_are_made_with_the_defaults_of_its_options(written, meant):
    options = "p.add_argument('--size', default=None)\np.add_argument('--group', type=int, default=8)\n"
    options += "p.add_argument('--file', required=True)\n"
    values = read_calls(f"from trl import GRPOConfig\n{options}GRPOConfig(a={written})", HERE).values
    assert values == {"a": meant}


def test_trainings_after_the_first_are_told(tmp_path):
    start = "python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.model.path=a/b"
    script = tmp_path / "two.sh"
    script.write_text(f"{start} trainer.total_training_steps=5\n{start} trainer.total_training_steps=10\n")
    draft = convert(script, rows=640)
    assert draft.spec["algorithm"]["maxSteps"] == 5
    assert [entry.key for entry in draft.dropped if "after this one" in entry.why] == ["further trainings: 1"]
    script.write_text(f"{start} trainer.total_training_steps=5\n")
    assert not [entry for entry in convert(script, rows=640).dropped if "after this one" in entry.why]
    script.write_text(f"{start}\npython3 -m verl.trainer.main_ppo --config-path nowhere --config-name no\n")
    assert convert(script, rows=640).foreign.further == 1, "one whose file isn't here is one, too"


def test_sampling_that_is_handed_on_by_an_object_is_named(tmp_path):
    script = tmp_path / "unsloth.py"
    script.write_text(
        "from trl import GRPOConfig, GRPOTrainer\nfrom vllm import SamplingParams\n"
        "GRPOTrainer(model='a/b', args=GRPOConfig(vllm_sampling_params=SamplingParams(temperature=0.8)))\n"
    )
    (told,) = [entry for entry in convert(script, rows=640).dropped if entry.key == "vllm_sampling_params"]
    assert "fields of rollout.sampling" in told.why


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "x: 1\n", "no configuration or launch script"),
        ("a.sh", "echo hello\n", "no configuration or launch script"),
        ("a.py", "import os\n", "no configuration or launch script"),
        ("a.py", "from trl import KTOConfig\n", "trains by KTOConfig, which has no equivalent"),
        ("a.py", "from trl import (\n", "no Python"),
        ("a.sh", "trl grpo --config nowhere.yaml\n", "names nowhere.yaml, which is not here"),
        ("a.yaml", "actor_rollout_ref: {}\ndefaults: [x]\n", "composes files"),
        ("a.yaml", "train_dataset: {batch_size: many}\n", "batch_size is 'many', not a number"),
        ("a.yaml", "train_dataset: {batch_size: 4}\nactor: {backend: 'tpu:d4'}\n", "no allocation"),
    ],
)
def test_files_that_are_refused_in_words(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        convert(tmp_path / name)
