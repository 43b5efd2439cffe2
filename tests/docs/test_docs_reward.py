"""What the page on rewards says of tiers, formats, checkers, statuses, flags, limits and commands is true."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from areal.admit.answers import _SUITE_ROWS
from areal.admit.pod_rules import offer_of
from areal.reward.verifiers.code import _FORKS, NO_PROGRAM
from areal.spec.runtime import RuntimeSandbox, RuntimeSpec
from areal.spec.serving import CodeReward
from areal.v1 import sandbox_pb2 as pb
from areal_judge.judge.checkers import NAMES
from areal_judge.judge.flags import of_source
from areal_judge.judge.formats.registry import FORMATS
from areal_judge.judge.languages.table import COMPILE_LIMITS, LANGUAGES
from areal_judge.judge.suites import from_document
from areal_judge.judge.values import OF_PROGRAM, RETRYABLE, Flag, Status
from areal_judge.sandbox.host.tiers import as_markdown
from areal_judge.sandbox.values import DEFAULT_LIMITS
from areal_judge.server.http import HTTP_STATUS, message_of
from typer.main import get_command

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reward.md").read_text()


def first_column(heading: str) -> list[str]:
    """The words in backticks that begin the rows of the first table after a heading's words."""
    table = PAGE.partition(heading)[2].partition("|---")[2].partition("\n\n")[0]
    return [cell for row in table.splitlines()[1:] for cell in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_tiers_are_the_sandbox_s_own_table():
    assert PAGE.partition("<!-- tiers -->\n")[2].partition("<!-- /tiers -->")[0] == as_markdown()


def test_every_format_and_every_checker_has_a_row():
    assert first_column("by its columns:") == list(FORMATS)
    assert sorted(first_column("calls the program in another.")) == sorted(NAMES)


def test_statuses_are_sorted_by_whose_doing_they_are():
    rows = first_column("### From a judgement to a reward")
    named = {Status(word) for word in rows if word != NO_PROGRAM}
    assert named == set(Status) - {Status.SKIPPED}
    assert {Status(word) for word in rows[: len(OF_PROGRAM)]} == OF_PROGRAM
    assert {Status(word) for word in rows[len(OF_PROGRAM) + 1 :][: len(RETRYABLE)]} == RETRYABLE


def test_languages_that_need_a_cgroup_are_named():
    shown = {
        "javascript": "JavaScript",
        "java": "Java",
        "go": "Go",
        "bash": "bash",
        "c": "C",
        "cpp": "C++",
        "rust": "Rust",
    }
    several = re.search(r"\. ([\w+, ]+) are several processes or threads", PAGE)[1]
    named = set(re.split(r", | and ", several))
    assert named == {shown[one.name] for one in LANGUAGES.values() if not one.as_memory or one.processes > 1}


def test_every_flag_is_named_with_what_it_rests_on():
    by_deed, by_name = (
        set(re.findall(r"(?m)^\| `([a-z_]+)` \|", PAGE.partition(f"| flag | rests on {what}")[2].partition("\n\n")[0]))
        for what in ("what the program did", "names in the source")
    )
    seen = of_source("os._exit(0); signal.signal; ctypes.CDLL(None); sys._getframe()", "python")
    assert by_name == set(seen) - by_deed
    assert by_deed | by_name == {flag.value for flag in Flag}


def test_limits_are_the_defaults():
    limits = DEFAULT_LIMITS
    table = PAGE.partition("### Limits")[2].partition("\n\nA row")[0]
    for said in (
        f"{limits.wall_s:g} s, {limits.cpu_s:g} s a case",
        f"`reward.code.totalSeconds` ({CodeReward().total_seconds:g} s)",
        f"| {limits.memory_bytes >> 20} MB |",
        f"{limits.output_bytes >> 20} MB (one byte more ends the run), {limits.stderr_bytes >> 10} kB",
        f"{limits.disk_bytes >> 20} MB, {limits.inodes:,} files",
        f"| {limits.processes}, {limits.open_files}, {limits.stack_bytes >> 20} MB |",
        f"{COMPILE_LIMITS.cpu_s:g} s of processor time, {COMPILE_LIMITS.wall_s:g} s by the clock, "
        f"{COMPILE_LIMITS.memory_bytes >> 30} GB",
    ):
        assert said in table
    assert f"programs {_FORKS} processes" in PAGE
    assert f"the first {_SUITE_ROWS:,} rows" in PAGE


def test_the_suites_that_are_shown_are_suites():
    shown = PAGE.partition("### Suites\n\n```json\n")[2].partition("```")[0].splitlines()
    assert {type(from_document(json.loads(line))).__name__ for line in shown} == {
        "StdioSuite", "CallSuite", "AssertSuite",
    }  # fmt: skip


def test_the_runtime_that_is_shown_gives_its_pods_namespaces():
    shown = yaml.safe_load(re.search(r"```yaml\n(apiVersion: areal.*?)```", PAGE, re.S)[1])
    platform = RuntimeSpec.model_validate(shown["spec"])
    offer = offer_of(platform.template_of("reward")["spec"], platform.sandbox)
    assert (shown["kind"], offer.tier) == ("ClusterRLRuntime", "T3")


def test_the_job_that_is_shown_for_gvisor_is_accepted_there():
    shown = yaml.safe_load(re.search(r"```yaml\n(spec:\n  reward:.*?)```", PAGE, re.S)[1])["spec"]
    offer = offer_of({"runtimeClassName": shown["podTemplate"]["reward"]["runtimeClassName"]}, RuntimeSandbox())
    assert offer.tier == shown["reward"]["code"]["minTier"] == "T4"


def test_the_bodies_that_are_shown_are_requests():
    shown = dict(re.findall(r"localhost:7651/v1/(\w+) -d '(.*?)'$", PAGE, re.S | re.M))
    assert message_of(pb.ExecuteRequest, shown["execute"].encode()).program.source == "print(3)"
    judged = message_of(pb.JudgeRequest, shown["judge"].encode())
    assert from_document(json.loads(judged.suite.json)).cases[0].stdin == "1 2\n"


def test_every_rpc_has_a_row():
    paths = set(re.findall(r"`(?:GET |POST )?(/v1/\w+)`", PAGE))
    methods = pb.DESCRIPTOR.services_by_name["Sandbox"].methods
    assert paths == {f"/v1/{re.sub('(?<!^)(?=[A-Z])', '_', method.name).lower()}" for method in methods}


def test_http_statuses_are_those_of_the_service():
    said = {int(code) for code in re.findall(r"\b([45]\d\d) (?:with|after|below|for|when)", PAGE)}
    assert said == set(HTTP_STATUS.values()) - {499, 400}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^areal ((?:reward|eval) \w+)[^\n]*$", PAGE, re.M))))
def test_the_commands_that_are_shown_exist_with_their_options(command):
    from areal.cli.main import app

    group, name = command.split()
    found = get_command(app).commands[group].commands[name]
    options = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for line in re.findall(rf"^areal {command}([^\n#]*)", PAGE, re.M):
        assert {word for word in line.split() if word.startswith("--")} <= options


@pytest.mark.nightly  # each landing: these commands and every problem of HumanEval in test_evaluate_commands.py
@pytest.mark.component
def test_what_is_shown_for_a_laptop_runs_word_for_word(tmp_path):
    shown = PAGE.partition("<!-- laptop -->")[2].partition("<!-- /laptop -->")[0]
    blocks = [block for _, block in re.findall(r"(?m)^(`{3,})bash\n(.*?)^\1$", shown, re.S)]
    assert len(blocks) == 4
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "set -e\n" + "\n".join(blocks)
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exit code 1: it did not pass" in done.stdout
    assert "164 of 164 answers are right" in done.stdout
    assert "0 of 1 answers are right" in done.stdout
