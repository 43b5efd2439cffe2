"""What a YAML file means, and what no job file is: each in bounded time, with exit code 64 and the place."""

from __future__ import annotations

import contextlib
import math
import random
import time
from pathlib import Path

import pytest
from areal.cli.main import app, guarded
from areal.errors import ConfigError, ExitCode
from areal.spec import load_job
from areal.spec.problems import SpecError
from areal.yaml_file.document import parse_document, parse_value
from spec_corpus import CORPUS

QUICKSTART = CORPUS / "accepted" / "quickstart.yaml"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True), ("On", True), ("y", True), ("TRUE", True), ("n", False), ("OFF", False), ("false", False),
        ("yEs", "yEs"), ("~", None), ("null", None), ("", None), ("nUll", "nUll"),
        ("160", 160), ("+3", 3), ("-3", -3), ("1_000", 1000), ("0x1F", 31), ("0o17", 15), ("0b101", 5), ("-0x10", -16),
        ("1e3", 1000), ("1.0", 1), ("1e-4", 1e-4), (".5", 0.5), ("5.", 5), ("-1.5E2", -150), ("1e400", "1e400"),
        ("1:40", "1:40"), ("1:40:30.5", "1:40:30.5"), ("2026-11-22", "2026-11-22"), ("1.2.3", "1.2.3"), ("-", "-"),
        (".inf", math.inf), ("-.INF", -math.inf), ("'160'", "160"), ('"yes"', "yes"), ("!!str 160", "160"),
        ("!!int '7'", 7), ("!!float 3", 3), ("9223372036854775807", (1 << 63) - 1),
        ("9223372036854775808", 9223372036854776000),
        ("18446744073709551616", 18446744073709552000), ("0", 0), ("-0", 0), ("0.5", 0.5),
    ],
)  # fmt: skip
def test_a_scalar_means_what_it_means_to_a_cluster(text, value):
    read = parse_value(text) if text != "-" else parse_document("a: '-'", Path("job.yaml")).values["a"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize("text", ["0160", "-007", "08", "0_1"])
def test_a_number_with_a_leading_zero_is_refused_with_both_ways_out(text):
    with pytest.raises(ConfigError, match="without leading zeros, or put it in quotes"):
        parse_value(text)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "metadata.name=yes",
            "expected text, got true; unquoted yes, no, on, off, y and n mean true and false: put it",
        ),
        ("rollout.workflow=12", "expected text, got 12; put it in quotes where text is meant"),
        ('algorithm.maxSteps="160"', "expected a whole number, got '160'; write it without quotes"),
        ('suspend="true"', "expected true or false, got 'true'; write it without quotes"),
        ("algorithm.maxSteps=1:40", "expected a whole number, got '1:40'"),
        ("algorithm.maxSteps=yes", "expected a whole number, got true"),
        (f"storage.size={(1 << 60) - 1}", "more digits than a cluster counts with"),
        (
            "dataset.train.reasoningGym={task: maze, size: 3, config: {a: [.inf]}}",
            ".inf and .nan are no values of JSON",
        ),
        ("algorithm.maxSteps=1.5", "expected a whole number, got 1.5"),
        (f"algorithm.maxSteps={'x' * 100_000}", "x… (100002 characters)"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_to_write(override, says):
    with pytest.raises(SpecError) as caught:
        load_job(QUICKSTART, [override])
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2000


def bomb() -> str:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(["a0: &a0 [x]", *levels])


HOSTILE = {
    "aliases that multiply": (bomb(), "each use of an alias counted"),
    "an alias of what it is in": ("a: &a [*a]", "undefined alias"),
    "an alias deeper than allowed": (
        "a: &a " + "[" * 20 + "]" * 20 + "\nb: " + "[" * 20 + "*a" + "]" * 20,
        "nested more than 32",
    ),
    "brackets": ("a: " + "[" * 100_000, "nested more than 32"),
    "braces": ("{a: " * 3000, "nested more than 32"),
    "dashes": ("- " * 3000, "nested more than 32"),
    "question marks": ("? " * 3000, "needs a name"),
    "blocks": ("\n".join(" " * n + "a:" for n in range(400)), "nested more than 32"),
    "NUL": ("kind: RLJob\nspec: a\x00b\n", "job.yaml:2:8: .*U\\+0000 is not allowed"),
    "an escape character": ("kind: RLJob\n# \x1b[31m\n", "job.yaml:2:3: .*U\\+001B"),
    "half a character": ('kind: RLJob\nspec: "\\ud800"\n', "job.yaml:2:7: .*surrogate"),
    "ten megabytes": ("a: 1\n" * 2_000_000, "more than 256 KiB"),
    "very many values": ("\n".join(f"a{n}: 1" for n in range(16_000)), "more than 10000 values"),
    "binary": ("a: !!binary aGk=\n", "tag .* is not for job files"),
    "a set": ("a: !!set {b}\n", "tag .* is not for job files"),
    "a key of several": ("[a, b]: 1\n", "needs a name"),
    "a key of nothing": ("~: 1\n", "needs a name"),
    "a merge of no mapping": ("<<: 3\n", "<< needs a mapping"),
    "a leading zero": ("kind: 0160\n", "job.yaml:1:7: .*leading zeros"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_its_place(name, tmp_path, capsys):
    text, says = HOSTILE[name]
    path = tmp_path / "job.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError, match=says) as caught:
        load_job(path)
    assert caught.value.fix
    assert time.process_time() - began < 10, "bounded, whatever the machine"
    assert guarded(lambda: app(["check", str(path)])) == ExitCode.CONFIG
    assert "bug error" not in capsys.readouterr().err


def test_text_in_another_encoding_is_refused_with_its_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"kind: RLJob\nmetadata: {name: \xff}\n")
    with pytest.raises(ConfigError, match=r"job\.yaml:2: this is no UTF-8"):
        load_job(path)


def test_no_file_of_any_characters_is_our_fault(tmp_path):
    random_ = random.Random(5)
    text = QUICKSTART.read_text()
    pieces = ["&a ", "*a", "<<: ", "[", "]", "{", "}", ": ", "- ", "\n", "\t", "|", ">", "!!int ", "!x ", "%", "@", "`"]
    pieces += ['"\\u', "'", "#", "? ", "\x00", "\x85", "\U0001f600", "0", ".nan", "~", "---\n", "...\n"]
    path = tmp_path / "job.yaml"
    accepted = 0
    for _ in range(300):
        at = random_.randrange(len(text))
        path.write_text(text[:at] + "".join(random_.choices(pieces, k=3)) + text[at + random_.randrange(4) :])
        with contextlib.suppress(ConfigError):
            load_job(path)
            accepted += 1
    assert 0 < accepted < 300


def test_an_alias_is_a_value_of_its_own_at_each_use(tmp_path):
    text = QUICKSTART.read_text().replace("    train:\n", "    train: &rows\n")
    text = text.replace("    evaluation:\n      jsonl: data/heldout.jsonl\n", "    evaluation: *rows\n")
    path = tmp_path / "job.yaml"
    path.write_text(text)
    dataset = load_job(path, ["dataset.evaluation.jsonl=other.jsonl"]).spec.dataset
    assert (dataset.train.jsonl, dataset.evaluation.jsonl) == ("data/train.jsonl", "other.jsonl")


def test_what_a_cluster_adds_to_an_object_is_no_field_of_the_file(tmp_path):
    text = QUICKSTART.read_text().replace(
        "metadata:\n",
        "status: {summary: Running}\nmetadata:\n  uid: 5a\n  generation: 2\n  resourceVersion: '7'\n"
        "  creationTimestamp: '2026-11-21T02:00:00Z'\n  managedFields: [{manager: kubectl}]\n"
        "  annotations: {Example.com/a: b}\n",
    )
    path = tmp_path / "job.yaml"
    path.write_text(text)
    assert load_job(path).spec == load_job(QUICKSTART).spec
