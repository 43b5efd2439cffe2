"""The table of lost machines is what its command makes of the measured cases."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("node_losses", ROOT / "bench" / "node_losses.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_cases_as_they_were_measured() -> None:
    cases = [json.loads(line) for line in (ROOT / "docs" / "node-losses.jsonl").read_text().splitlines()]
    page = (ROOT / "docs" / "recovery.md").read_text()
    shown = page.partition("<!-- the loss of a machine -->\n")[2].partition("<!-- /the loss of a machine -->")[0]
    assert shown.splitlines() == bench().table(cases)
    assert all(case["audit"]["lost"] == case["audit"]["duplicated"] == 0 for case in cases if "audit" in case)
    claimed = {case["role"]: case["false_s"] for case in cases if case.get("false_s")}
    assert not claimed, "the page says so"
    assert {case["role"] for case in cases if "kind" in case} == set(bench().ROLES)
    assert all(case["false_s"] is not None for case in cases if "kind" in case)
