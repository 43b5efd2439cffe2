"""Each deviation from other projects names a test, and the test is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| here ")]


def test_each_row_names_a_test_that_is_there():
    assert len(ROWS) >= 28
    for row in ROWS:
        (named,) = re.findall(r"`([\w/]+\.py)::(test_\w+)`", row)
        file, test = named
        assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), named
