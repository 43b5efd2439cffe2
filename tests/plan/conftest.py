"""A workspace to plan in."""

from __future__ import annotations

import pytest
from support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Workspace:
    """An absolute one, and the current directory is its root."""
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path).fill()
