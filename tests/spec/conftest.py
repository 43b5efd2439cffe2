"""A namespace for tests of definitions in a real API server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube.harness.client import Client
from kube.harness.control_plane import Cluster
from kube.harness.fixtures import fresh_namespace

API = "areal.dev/v1alpha1"


@pytest.fixture(scope="module")
def home(cluster: Cluster) -> Iterator[str]:
    """One namespace for all tests: to delete another for each keeps the API server busier than the tests do."""
    with fresh_namespace(cluster) as name:
        yield name


@pytest.fixture
def namespace(admin: Client, home: str) -> Iterator[str]:
    """The namespace as each test finds it, and leaves it: without jobs."""
    yield home
    admin.raw("DELETE", f"/apis/{API}/namespaces/{home}/rljobs")
    assert admin.list(API, "RLJob", home) == []
