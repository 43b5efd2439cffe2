"""The command line: instant help, and errors that a person can act on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from admit.admit_shapes import QWEN3_8B
from areal.cli.main import app, guarded
from areal.cli.table import COMMANDS
from areal.errors import BugError, ConfigError, DataError, InfraError
from support.tiny_job import make_tiny_job
from typer.main import get_command
from typer.testing import CliRunner

SHOWN = {
    "run", "check", "prepare", "status", "logs", "compare", "audit", "report", "submit", "reward", "eval", "version",
    "view", "why", "serve", "chat", "set", "export", "runs", "clean", "convert", "new", "study", "try", "plan", "pull",
    "chaos", "jobs",
}  # fmt: skip
LIGHT = {"areal", "areal.cli", "areal.cli.main", "areal.cli.table", "areal.distribution", "areal.errors"}
READER = {"areal.cli.arguments", "areal.yaml_file", "areal.yaml_file.document"}
HEAVY = ("torch", "transformers", "grpc", "pydantic", "redis", "numpy", "tokenizers", "matplotlib", "yaml", "psutil")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_help_imports_nothing_but_the_parser():
    loaded = set(python("import sys\nimport areal.cli.main\nprint(*sys.modules)").split())
    assert {name for name in loaded if name.startswith("areal")} == LIGHT
    assert not [name for name in HEAVY if name in loaded]


def test_running_a_job_imports_no_torch():
    code = "import sys\nimport areal.local.run, areal.cli.check, areal.cli.runs, areal.local.inspect\n"
    loaded = set(python(code + "print(*sys.modules)").split())
    assert not [name for name in ("torch", "transformers", "matplotlib", "datasets", "pyarrow") if name in loaded]


@pytest.mark.parametrize("command", ["run", "check", "prepare", "submit"])
def test_a_file_that_is_no_job_is_refused_by_a_reader_alone(command, tmp_path):
    (tmp_path / "bomb.yaml").write_text("a: &a [x, x]\n" + "".join(f"b{n}: [*a, *a]\n" for n in range(5000)))
    code = f"""
import sys
from areal.cli.main import app, guarded
print(guarded(lambda: app([{command!r}, {str(tmp_path / "bomb.yaml")!r}])), *sys.modules)
"""
    exit_code, *loaded = python(code).split()
    assert exit_code == "64"
    commands = {"areal_operator", "areal_operator.commands"} if command == "submit" else {"areal.cli.jobs"}
    assert {name for name in loaded if name.startswith("areal")} == LIGHT | READER | commands
    assert not {"numpy", "tokenizers", "grpc", "torch", "redis", "rich"} & set(loaded)


@pytest.mark.parametrize(("name", "shown"), [("/dev/stdin", b"/dev/stdin"), ("-", b"<stdin>")])
def test_a_job_file_is_read_once(name, shown, tmp_path):
    make_tiny_job(tmp_path)
    given = subprocess.run(
        [sys.executable, "-m", "areal.cli.main", "check", name, f"model.path={tmp_path}/gone"],
        input=(tmp_path / "job.yaml").read_bytes(), cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    assert (b"\n%b is refused\n" % shown in given.stdout, given.stderr) == (True, b"")
    assert b"recipe.py" not in given.stdout, "its paths are those of a file in the current directory"


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["check", "nowhere.yaml", "--json"], 64, "config"),
        (["status", "nowhere", "--json"], 64, "config"),
        (["check", "--json", "--nothing"], 64, "config"),
        (["run", "--json"], 64, "config"),
        (["logs", "nowhere", "--json"], 64, "config"),
        (["new", "toy", "here", "--json"], 64, "config"),
        (["study", "sweep", "nowhere.yaml", "--json"], 64, "config"),
        (["submit", "nowhere.yaml", "--json"], 64, "config"),
        (["clean", "--nothing", "--json"], 64, "config"),
    ],
)
def test_an_error_under_json_is_one_object(arguments, code, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert guarded(lambda: app(arguments)) == code
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert (told["ok"], told["code"], told["kind"], shown.err) == (False, code, kind, "")
    assert told["message"]
    assert told["fix"]


def test_the_places_of_wrong_fields_are_in_the_object(tmp_path, capsys):
    (tmp_path / "job.yaml").write_text("apiVersion: areal.dev/v1alpha1\nkind: RLJob\nmetadata: {name: a}\nspecs: {}\n")
    assert guarded(lambda: app(["check", str(tmp_path / "job.yaml"), "--json"])) == 64
    places = json.loads(capsys.readouterr().out)["places"]
    assert {(one["field"], one["where"].rpartition(":")[2]) for one in places} >= {("specs", "4")}


@pytest.mark.component
def test_a_full_standard_output_is_said_plainly(tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m areal.cli.main runs --json > /dev/full", shell=True, cwd=tmp_path, capture_output=True
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (75, b"infra error [disk-full]: the disk is full")


@pytest.mark.component
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_run_directories(shell, tmp_path):
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    (tmp_path / "runs" / "digits" / "resolved.json").touch()
    for typed, meant in {"areal stu": "study", "areal status ru": "runs/digits"}.items():
        asked = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_TYPER_COMPLETE_ARGS": typed}
        env = {**os.environ, **asked, "_AREAL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        done = subprocess.run([Path(sys.executable).parent / "areal"], env=env, cwd=tmp_path, capture_output=True)
        assert meant.encode() in done.stdout


def test_memory_is_planned_by_the_very_file_that_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")  # not this one
    config = tmp_path / "qwen3.json"
    config.write_text(json.dumps(QWEN3_8B))
    job = str(Path(__file__).parents[2] / "examples/lora-8b.yaml")
    shown = CliRunner().invoke(app, ["check", job, "--json", "--model-config", str(config)])
    assert shown.exit_code == 0, shown.output
    assert not any("memory" in one for one in json.loads(shown.output)["notLookedAt"])
    shown = CliRunner().invoke(app, ["check", job, "--model-config", str(tmp_path / "gone.json")])
    assert isinstance(shown.exception, DataError)
    assert "gone.json can't be read" in shown.exception.message


def test_help_lists_every_command_that_people_type():
    shown = CliRunner().invoke(app, ["--help"]).output.split("Commands:\n")[1].splitlines()
    assert {line.split()[0] for line in shown if line[2:3].strip()} == SHOWN


def test_examples_are_of_commands_in_the_table():
    examples = json.loads(files("areal.cli").joinpath("examples.json").read_bytes())
    assert set(examples) <= set(COMMANDS)
    assert all(title.endswith(":") and shown for title, *shown in examples.values())


def test_a_command_of_the_table_is_where_it_says():
    parser = get_command(app)
    assert parser.commands.keys() == SHOWN | {"init-model", "operator", "jobs-page"}
    assert {name: one.name for name, one in parser.commands.items()} == {name: name for name in parser.commands}
    assert "nosuch" not in parser.commands


@pytest.mark.parametrize(
    "name",
    ["run", "check", "prepare", "status", "logs", "compare", "audit", "report", "submit", "chat", "set", "export"],
)
def test_each_command_shows_an_example(name):
    assert f"areal {name} " in CliRunner().invoke(app, [name, "--help"]).output.split("Options")[-1]


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (ConfigError("no such field", fix="remove it"), 64, "config error: no such field"),
        (DataError("no such column", fix="add it"), 65, "data error: no such column"),
        (BugError("we broke it"), 70, "bug error: we broke it"),
        (InfraError("the disk is full", fix="free it"), 75, "infra error: the disk is full"),
        (RuntimeError("surprise"), 70, "bug error: RuntimeError: surprise (test_cli_main.py:"),
        (KeyboardInterrupt(), 143, "stopped"),
    ],
)
def test_an_error_is_one_message_and_a_code(error, code, word, capsys):
    def fail() -> None:
        raise error

    assert guarded(fail) == code
    shown = capsys.readouterr().err
    assert word in shown
    assert "Traceback" not in shown
    if getattr(error, "fix", ""):
        assert f"fix: {error.fix}" in shown


def areal(*arguments: str, cwd: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    env |= {"PATH": path} if path is not None else {}
    return subprocess.run(
        [sys.executable, "-m", "areal.cli.main", *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.component
def test_a_broken_pipe_is_no_error(tmp_path):
    done = subprocess.run(
        f"{sys.executable} -m areal.cli.main --help | true", shell=True, cwd=tmp_path, capture_output=True, timeout=60
    )
    assert done.stderr == b""


@pytest.mark.component
def test_an_unknown_option_is_refused_with_usage(tmp_path):
    done = areal("run", "--no-such-option", cwd=tmp_path)
    assert done.returncode == 64
    assert "no-such-option" in done.stderr


@pytest.mark.component
@pytest.mark.parametrize("command", ["status", "logs", "audit", "report"])
def test_a_directory_that_is_no_run_is_refused(command, tmp_path):
    done = areal(command, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 64
    assert "is no run directory" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.component
def test_version_is_the_package_version(tmp_path):
    from areal import __version__

    assert areal("version", cwd=tmp_path).stdout.strip() == __version__


@pytest.mark.component
@pytest.mark.parametrize("command", ["run", "check", "prepare"])
def test_a_missing_file_is_named(command, tmp_path):
    done = areal(command, "nowhere.yaml", cwd=tmp_path)
    assert done.returncode == 64
    assert "nowhere.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
