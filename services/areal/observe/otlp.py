"""OTLP exporter: queues spans and sends them to an OpenTelemetry collector from a thread of the SDK.

Imported only where traces are wanted. A collector that is slow or away costs spans, never the run: the queue is bounded
and its oldest spans go first. Timeouts, headers and certificates are those of OpenTelemetry's own variables
(OTEL_EXPORTER_OTLP_…).
"""

import logging
import os
import threading
from collections.abc import Mapping

from areal.distribution import install
from areal.observe.traces import NO_TRACES, Span, SpanIds, Traces

log = logging.getLogger(__name__)

USUAL_SHARE = 0.01  # of the groups, where the environment alone asks for traces
CLOSE_S = 3.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_SHARE = "OTEL_TRACES_SAMPLER_ARG"


def open_traces(run: str, role: str, job: str, endpoint: str | None, share: float | None) -> Traces:
    """The traces of a role. `endpoint` and `share` are the job's; what it leaves open comes from the environment.

    Off unless the job or the environment names an endpoint. What is missing is said once and turns them off.
    """
    environment = os.environ
    named = endpoint or next((environment[name] for name in _ENDPOINTS if environment.get(name)), None)
    if named is None:
        return NO_TRACES
    if share is None:
        share = _share(environment)
    if share <= 0:
        return NO_TRACES
    try:
        sink = OtlpSink(role, job, run, endpoint)
    except ImportError as error:
        log.warning("traces are off, %s is not installed: %s", error.name, install("traces"))
        return NO_TRACES
    log.info("traces of %g of the groups go to %s", share, named)
    return Traces(run, share, sink)


def _share(environment: Mapping[str, str]) -> float:
    given = environment.get(_SHARE, "")
    try:
        return float(given) if given else USUAL_SHARE
    except ValueError:
        log.warning("%s is %r: give a number from 0 to 1", _SHARE, given)
        return USUAL_SHARE


class OtlpSink:
    """Sends spans by OTLP over HTTP. `endpoint` is the collector's base URL; None: the environment's."""

    def __init__(self, role: str, job: str, run: str, endpoint: str | None) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        class Ids(RandomIdGenerator):
            """Random ids, but for a span that others must find."""

            own: SpanIds | None = None

            def generate_span_id(self) -> int:
                return self.own.span if self.own is not None else super().generate_span_id()

            def generate_trace_id(self) -> int:
                return self.own.trace if self.own is not None else super().generate_trace_id()

        kind = role.rstrip("0123456789").rstrip("-")
        resource = Resource.create(
            {
                "service.name": f"areal-{kind}",
                "service.namespace": job,
                "service.instance.id": role,
                "areal.job": job,
                "areal.run": run,
            }
        )
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
        self._ids = Ids()
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("areal")
        self._lock = threading.Lock()

    def emit(self, span: Span) -> None:
        """Queue a span."""
        from opentelemetry.context import Context
        from opentelemetry.trace import (
            Link,
            NonRecordingSpan,
            SpanContext,
            Status,
            StatusCode,
            TraceFlags,
            set_span_in_context,
        )

        def known(place: SpanIds) -> SpanContext:
            return SpanContext(place.trace, place.span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        context = Context()
        if span.parent is not None:
            context = set_span_in_context(NonRecordingSpan(known(span.parent)), context)
        with self._lock:
            self._ids.own = span.own
            made = self._tracer.start_span(
                span.name,
                context,
                attributes=dict(span.attributes),
                links=[Link(known(place)) for place in span.links],
                start_time=int(span.began * 1e9),
            )
            self._ids.own = None
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(int(span.ended * 1e9))

    def close(self) -> None:
        """Send what is queued, within a moment: a collector that is away must not hold up the end."""
        sender = threading.Thread(target=self._provider.shutdown, daemon=True)
        sender.start()
        sender.join(CLOSE_S)
