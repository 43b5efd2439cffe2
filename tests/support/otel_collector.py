"""A real OpenTelemetry collector that writes what it receives to a file, for tests of traces."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from areal.plan.roles import free_ports
from kube.harness.tools import tool

_CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{file: {{path: "{path}", flush_interval: 100ms}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}
"""


@dataclass(frozen=True)
class Received:
    """A span as the collector wrote it down."""

    name: str
    service: str
    instance: str
    trace: str
    span: str
    parent: str
    began: float
    ended: float
    attributes: dict[str, Any]
    links: tuple[str, ...]  # their traces
    error: str


@dataclass
class Collector:
    """A collector at `endpoint`."""

    endpoint: str
    path: Path

    def spans(self) -> list[Received]:
        """All spans so far."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        return [span for line in lines if line.endswith("\n") for span in _spans(json.loads(line))]

    def wait_for(self, seen: Callable[[list[Received]], bool], timeout_s: float = 60.0) -> list[Received]:
        """The spans, once `seen` holds of them."""
        deadline = time.monotonic() + timeout_s
        while not seen(spans := self.spans()):
            assert time.monotonic() < deadline, f"the collector has only {sorted({span.name for span in spans})}"
            time.sleep(0.1)
        return spans


@contextmanager
def collector(directory: Path) -> Iterator[Collector]:
    """Run one."""
    program = tool("otel-collector")
    (port,), path = free_ports(1), directory / "spans.jsonl"
    config = directory / "collector.yaml"
    config.write_text(_CONFIG.format(port=port, path=path))
    with (directory / "collector.log").open("wb") as log:
        process = subprocess.Popen([program, "--config", f"file:{config}"], stdout=log, stderr=log)
    made = Collector(f"http://127.0.0.1:{port}", path)
    try:
        _until_up(process, made.endpoint, directory / "collector.log")
        yield made
    finally:
        process.terminate()
        process.wait(60)


def _until_up(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.post(f"{endpoint}/v1/traces", content=b"", headers={"content-type": "application/x-protobuf"})
            return
        except httpx.TransportError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


def _spans(batch: dict[str, Any]) -> Iterator[Received]:
    for resource in batch["resourceSpans"]:
        of = _attributes(resource["resource"]["attributes"])
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield Received(
                    name=span["name"],
                    service=of["service.name"],
                    instance=of["service.instance.id"],
                    trace=span["traceId"],
                    span=span["spanId"],
                    parent=span.get("parentSpanId", ""),
                    began=int(span["startTimeUnixNano"]) / 1e9,
                    ended=int(span["endTimeUnixNano"]) / 1e9,
                    attributes=_attributes(span.get("attributes", [])),
                    links=tuple(link["traceId"] for link in span.get("links", [])),
                    error=span.get("status", {}).get("message", ""),
                )


def _attributes(listed: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in listed}
