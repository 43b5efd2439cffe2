"""Read-only routes: health, readiness, model, load, metrics. All answer while paused."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from areal import __version__
from areal.engine.embedded import TorchEngine


def add_info_routes(app: FastAPI, engine: TorchEngine) -> None:
    """Routes that change nothing."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine))

    @app.get("/health")
    @app.get("/health_generate")
    async def health() -> Response:
        return Response(status_code=200 if engine.healthy and not engine.draining else 503)

    @app.get("/ready")
    async def ready() -> Response:
        serving = engine.healthy and not engine.draining and not engine.stats.paused
        return Response(status_code=200 if serving else 503)

    @app.get("/model_info")
    async def model_info() -> Response:
        stats = engine.stats
        return _json(
            {
                "model_path": stats.model_path,
                "served_model_name": stats.model_path,
                "tokenizer_path": str(engine.options.tokenizer_path or engine.options.model_path),
                "is_generation": True,
                "weight_version": stats.weight_version,
                "architectures": [engine.config.architecture],
            }
        )

    @app.get("/server_info")
    async def server_info() -> Response:
        options = engine.options
        return _json(
            {
                "version": __version__,
                "frontend": "embedded",
                "model_path": engine.stats.model_path,
                "weight_version": engine.stats.weight_version,
                "dtype": options.dtype,
                "context_length": engine.context,
                "max_running_requests": options.max_running_requests,
                "max_total_num_tokens": engine.max_total_tokens,
                "vocab_size": engine.config.vocab,
                "stream_interval": options.stream_interval,
            }
        )

    @app.get("/v1/loads")
    async def loads() -> Response:
        stats = engine.stats
        load = {
            "dp_rank": 0,
            "num_running_reqs": stats.running,
            "num_waiting_reqs": stats.waiting,
            "num_used_tokens": stats.used_tokens,
            "token_usage": stats.used_tokens / engine.max_total_tokens,
            "max_total_num_tokens": engine.max_total_tokens,
            "max_running_requests": engine.options.max_running_requests,
            "gen_throughput": stats.gen_throughput,
            "utilization": stats.running / engine.options.max_running_requests,
        }
        return _json({"timestamp": datetime.now(UTC).isoformat(), "version": __version__, "loads": [load]})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


class _EngineCollector(Collector):
    """SGLang's metric names over the scheduler's figures."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        stats, engine = self._engine.stats, self._engine
        gauges = {
            "sglang:num_running_reqs": ("Requests in the running batch", stats.running),
            "sglang:num_queue_reqs": ("Requests that wait", stats.waiting),
            "sglang:num_used_tokens": ("Cache positions in use", stats.used_tokens),
            "sglang:token_usage": ("Share of the cache in use", stats.used_tokens / engine.max_total_tokens),
            "sglang:max_total_num_tokens": ("Cache positions there are", engine.max_total_tokens),
            "sglang:gen_throughput": ("Tokens a second", stats.gen_throughput),
        }
        counters = {
            "sglang:prompt_tokens": ("Prompt tokens received", stats.prompt_tokens),
            "sglang:generation_tokens": ("Tokens generated", stats.generated_tokens),
            "sglang:num_requests": ("Requests received", stats.requests),
            "sglang:num_aborted_requests": ("Requests aborted", stats.aborted),
            "sglang:num_retracted_reqs": ("Requests put back by a pause", stats.retracted),
        }
        labels = ["model_name", "engine_type"]
        values = [Path(engine.options.model_path).name, "embedded"]  # open to all: no path of the machine
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            gauge.add_metric(values, value)
            yield gauge
        for name, (text, value) in counters.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            counter.add_metric(values, value)
            yield counter
