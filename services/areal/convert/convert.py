"""Conversion of one file: read it, translate it by a framework's table, write the job and the recipe."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from areal.convert import from_areal, from_openrlhf, from_trl, from_verl
from areal.convert.draft import UNSET, Draft, Entry, JobDraft
from areal.convert.read import read_foreign
from areal.errors import ConfigError
from areal.files import write_atomically
from areal.spec.block import fields_of
from areal.spec.check import check
from areal.spec.job import JobSpec
from areal.spec.load import job_from
from areal.spec.problems import SpecError
from areal.spec.rules import Severity
from areal.yaml_file.document import DECIDE, parse_document

_TRANSLATIONS: Mapping[str, Callable[[JobDraft], None]] = {
    "areal": from_areal.translate,
    "verl": from_verl.translate,
    "trl": from_trl.translate,
    "openrlhf": from_openrlhf.translate,
}

_SHOWN = 60  # characters of a value in a list
_NAMES = {"areal": "AReaL", "verl": "verl", "trl": "TRL", "openrlhf": "OpenRLHF"}
_MICRO_BATCH = 8192  # trainer.microBatchTokens unless given


def convert(file: Path, framework: str | None = None, given: Sequence[str] = (), rows: int | None = None) -> JobDraft:
    """The job that a foreign file describes, and the lists of its keys.

    Args:
        file: a configuration or launch script of AReaL, verl, TRL or OpenRLHF.
        framework: whose it is; found out by its keys unless given.
        given: `KEY=VALUE` on top of the file's keys, or variables of a script.
        rows: how many rows the training set has, for epochs in steps.

    Raises ConfigError for a file that can't be read as any of these.
    """
    draft = JobDraft(read_foreign(file, framework, given), rows)
    _TRANSLATIONS[draft.foreign.framework](draft)
    draft.refuse_unset()
    for note in draft.foreign.notes:
        draft.decide(note)
    if more := draft.foreign.further:
        why = "started after this one; leave one training in the file to convert another"
        draft.dropped.append(Entry(f"further trainings: {more}", why=why))
    # a micro-batch that holds the longest sample, where the file names no other
    longest = draft.spec.get("rollout", draft.spec.get("training", {}))
    tokens = longest.get("maxSampleTokens", longest.get("maxTokens", 0))
    if "microBatchTokens" not in draft.spec.get("trainer", {}) and tokens > _MICRO_BATCH:
        draft.write("trainer.microBatchTokens", tokens)
    for what in _refusals(draft):
        draft.decide(what)
    return draft


def _refusals(draft: Draft) -> list[str]:
    """Refusals of the job's rules: its author must decide."""
    path = Path("job.yaml")
    try:
        job = job_from(parse_document(job_text(replace(draft, decisions=[])), path))
    except SpecError as error:
        return [f"{problem.field.removeprefix('spec.')}: {problem.message}" for problem in error.problems]
    found = [finding for finding in check(job) if finding.severity is Severity.ERROR]
    return [f"{finding.field.removeprefix('spec.')}: {finding.message}. {finding.fix}" for finding in found]


def write_draft(draft: Draft, out: Path) -> list[Path]:
    """Write job.yaml and, for RL, recipe.py; an existing file of another content is refused with ConfigError."""
    texts = {out / "job.yaml": job_text(draft)}
    if "recipe" in draft.spec:
        texts[out / "recipe.py"] = recipe_text(draft)
    for path, text in texts.items():
        if path.exists() and path.read_text() != text:
            raise ConfigError(f"{path} is there already", fix="Remove it, or name another directory by --out.")
    out.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text.encode())
    return list(texts)


def job_text(draft: Draft) -> str:
    """The job file: fields in their usual order, decisions last."""
    order = list(fields_of(JobSpec))
    spec = {name: draft.spec[name] for name in sorted(draft.spec, key=order.index)}
    head = f"# From {draft.foreign.file.name} ({_NAMES[draft.foreign.framework]}), by `areal convert`.\n"
    top = "apiVersion: areal.dev/v1alpha1\nkind: RLJob\n" + _yaml({"metadata": {"name": draft.name}})
    body = "spec:\n" + "".join(f"  {line}\n" for line in _yaml(spec).splitlines())
    asked = "".join(f"{DECIDE} {' '.join(what.split())}\n" for what in draft.decisions)
    return head + top + body + (f"\n{asked}" if asked else "")


class _Dumper(yaml.SafeDumper):
    """Quotes `y` and `n`, too, which are truths to other readers of YAML."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))


def _yaml(value: Any) -> str:
    return str(
        yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
    )


def recipe_text(draft: Draft) -> str:
    """The recipe: what is there of the reward, with where it was."""
    title = f'"""The reward of {draft.name}, from {draft.foreign.file.name}."""\n'
    return title + "\n" + (draft.recipe or _BUILT_IN)


_BUILT_IN = """# The job scores by `reward.verifier`. For your own define it here, and set `verifier: custom`:
#
#     def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
#         return float(completions.strip() == answer)
"""


def lists(draft: Draft) -> Iterator[tuple[str, list[tuple[list[str], str]]]]:
    """The three lists, each under its title: keys with what is said of them. Values of dropped keys are not shown."""
    yield "carried", [([entry.key], _now(entry)) for entry in draft.carried]
    yield (
        "meaning differs",
        [([entry.key], f"{_now(entry)} ({_shown(entry.was)} there; {entry.why})") for entry in draft.differs],
    )
    reasons = dict.fromkeys(entry.why for entry in draft.dropped)
    yield "dropped", [([entry.key for entry in draft.dropped if entry.why == why], why) for why in reasons]


def _now(entry: Entry) -> str:
    value = "" if entry.value is None or (isinstance(entry.value, dict) and len(entry.value) > 4) else entry.value
    return f"{entry.to}: {_shown(value)}" if value != "" else entry.to


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value).replace(UNSET, "")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
