"""SGLang's flags: each one of the pinned version is of one kind; what a job may give it, and what is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from areal.spec import Severity, check, load_job
from areal.spec.rules_sglang import _AGENT_OWNS, _KINDS, VERSION, Effect, kind_of
from spec_corpus import CORPUS

LISTS_FLAGS = """
import argparse, sglang
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(sglang.__version__, *(flag for action in parser._actions for flag in action.option_strings))
"""


def said(*arguments: str, sets: tuple[str, ...] = ()) -> dict[str, tuple[Severity, str]]:
    engine = "generation.engine={type: sglang, extraArgs: [" + ", ".join(f"'{word}'" for word in arguments) + "]}"
    job = load_job(CORPUS / "accepted" / "quickstart.yaml", [engine, *sets])
    found = check(job)
    return {one.rule: (one.severity, one.message) for one in found if one.rule.startswith("sglang-")}


@pytest.mark.sglang_real
@pytest.mark.nightly
def test_every_flag_of_the_pinned_version_has_a_kind_or_is_the_agents():
    done = subprocess.run([sys.executable, "-c", LISTS_FLAGS], capture_output=True, text=True, check=True, timeout=300)
    version, *flags = done.stdout.split()
    assert version == VERSION
    assert len(flags) > 500
    assert [flag for flag in flags if kind_of(flag) is None and flag not in _AGENT_OWNS] == []


@pytest.mark.parametrize(
    ("arguments", "rule", "words"),
    [
        (["--speculative-algorithm=NGRAM"], "sglang-unsupported", "speculation is unproved"),
        (["--enable-hierarchical-cache"], "sglang-unsupported", "older weights"),
        (["--dp", "2"], "sglang-unsupported", "several schedulers"),
        (["--enable-hicache"], "sglang-unsupported", "older weights"),
        (["--no-lora-strict-loading"], "sglang-unsupported", "trainer.lora"),
        (["--config", "own.yaml"], "sglang-unsupported", "the agent"),
        (["--quant", "fp8"], "sglang-unknown", "written whole"),
        (["--pagesize=16"], "sglang-unknown", "did you mean --page-size"),
        (["--port=1"], "sglang-arguments", "--port"),
        (["--quantization", "fp8"], "sglang-coarse", "other probabilities"),
        (["--kv-cache-dtype=fp8_e5m2"], "sglang-coarse", "other probabilities"),
    ],
)
def test_a_flag_that_would_change_what_is_trained_is_refused_with_its_reason(arguments, rule, words):
    severity, message = said(*arguments)[rule]
    assert severity is Severity.ERROR
    assert words in message


@pytest.mark.parametrize(
    "arguments",
    [
        ["--page-size", "16", "--log-level=info"],
        ["--schedule-conservativeness", "-0.5"],  # a negative number is a value
        ["--attention-backend", "fa3", "--disable-radix-cache"],
        ["--cuda-graph-bs-decode", "1", "2", "4"],
    ],
)
def test_limits_logs_and_other_kernels_are_taken(arguments):
    assert said(*arguments) == {}


def test_a_quantised_engine_is_taken_with_truncated_weights():
    truncated = ("algorithm.advanced.truncate={upper: 2.0}", "algorithm.advanced.rejection=null")
    assert said("--quantization", "fp8", sets=truncated) == {}


def test_flags_of_another_sglang_are_a_warning():
    found = said("--brand-new", sets=("generation.engine.python=/opt/sglang/bin/python",))
    assert {rule: severity for rule, (severity, _) in found.items()} == {"sglang-own-flags": Severity.WARNING}


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.patterns[0])
def test_a_reason_is_given_where_and_only_where_a_flag_is_refused(kind):
    assert bool(kind.reason) == (kind.effect is Effect.REFUSED)
