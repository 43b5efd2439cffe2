"""Tests of the chart. Those that call `helm` or `promtool` have the marker `kube_api`: they need `make k8s-tools`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # `deploy` is no part of the installed package
