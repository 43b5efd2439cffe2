"""A job's files are read once for one verdict, by one reader each."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest
from areal.admit import recipe_probe
from areal.admit.verdict import admit
from areal.spec import load_job
from support.sources import modules, parsed
from support.tiny_job import make_tiny_job

READERS = {  # what is called, and the only file of the core that calls it
    "read_model": "facts.py",  # config.json
    "probe_recipe": "facts.py",  # the recipe, in a process of its own
    "Sources": "sources.py",
}


@pytest.mark.parametrize("name", READERS)
def test_each_fact_has_one_reader(name):
    calling = [
        path.name
        for path in modules("services/areal/admit", "services/areal/cli", "services/areal/local", "services/areal/plan")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
    ]
    assert set(calling) == {READERS[name]}


@pytest.mark.component
def test_a_verdict_reads_each_file_once_and_imports_the_recipe_once(tmp_path, monkeypatch):
    job = load_job(make_tiny_job(tmp_path))
    read: Counter[str] = Counter()
    real_text, real_run = Path.read_text, recipe_probe.subprocess.run

    def read_text(path: Path, *given, **options) -> str:
        read[path.name] += 1
        return real_text(path, *given, **options)

    def run(command, **options):
        read[Path(command[0]).name if "-m" not in command else command[command.index("-m") + 1]] += 1
        return real_run(command, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(recipe_probe.subprocess, "run", run)
    verdict = admit(job, tmp_path, tmp_path / "run")
    assert not verdict.faults, json.dumps([error.message for error in verdict.faults])
    assert (read["config.json"], read["areal.admit.recipe_probe"]) == (1, 1)
