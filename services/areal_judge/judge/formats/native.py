"""Our own form: the column `suite` holds a suite (see `judge.suites`), or the row itself is one."""

from areal_judge.judge.formats.fields import Row
from areal_judge.judge.suites import from_document, from_json
from areal_judge.judge.values import Suite


def claims(row: Row) -> bool:
    return row.get("suite") is not None or is_suite(row)


def is_suite(row: Row) -> bool:
    """Whether the row is a suite, column by column."""
    return row.get("kind") in ("stdio", "call", "assert")


def suite(row: Row) -> Suite:
    held = row.get("suite")
    if held is None:
        return from_document(row, "row")
    return from_json(held, "row.suite") if isinstance(held, str | bytes) else from_document(held, "row.suite")
