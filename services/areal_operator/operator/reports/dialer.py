"""Addresses of pods' ports. A cluster's operator dials the pod's own address; tests answer for fake pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from areal_operator.operator.observed import Pod

Dialer: TypeAlias = Callable[[str, str, Pod, int], tuple[str, int]]
"""(namespace, job, pod, port of the role) → (host, port to dial)."""


def by_pod_ip(namespace: str, job: str, pod: Pod, port: int) -> tuple[str, int]:
    """The pod's own address."""
    return (f"[{pod.ip}]" if ":" in pod.ip else pod.ip), port
