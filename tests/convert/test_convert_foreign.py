"""Examples of the frameworks themselves, from a folder that AREAL_FOREIGN_FILES names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from areal.convert.convert import convert, job_text, lists
from areal.errors import ConfigError
from areal.spec.check import check
from areal.spec.load import job_from
from areal.spec.problems import SpecError
from areal.spec.rules import Severity
from areal.yaml_file.document import parse_document

pytestmark = [pytest.mark.component, pytest.mark.nightly]


@pytest.mark.skipif("AREAL_FOREIGN_FILES" not in os.environ, reason="names no folder with examples of the frameworks")
def test_examples_of_the_frameworks_convert_and_pass_up_to_their_decisions():
    """Each is refused in words, or every key is in one list and what is left to refuse is a decision."""
    folder = Path(os.environ["AREAL_FOREIGN_FILES"])
    passed = 0
    for file in sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".sh", ".py", ".ipynb")):
        try:
            draft = convert(file)
        except ConfigError:
            continue
        named = [key for _, rows in lists(draft) for keys, _ in rows for key in keys]
        listed = [key for key in named if not key.endswith("(not written)") and not key.startswith("further trainings")]
        assert sorted(listed) == sorted(draft.foreign.values), file
        text = "\n".join(line for line in job_text(draft).splitlines() if not line.startswith("# decide:"))
        decided = " ".join(draft.decisions)
        try:
            found = [each for each in check(job_from(parse_document(text, file))) if each.severity is Severity.ERROR]
            errors = [each.message for each in found]
        except SpecError as error:  # of a single field
            errors = [problem.message for problem in error.problems]
        assert all(message in decided for message in errors), file
        passed += 1
    assert passed
