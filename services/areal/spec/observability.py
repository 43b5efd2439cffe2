"""The `observability` block."""

from areal.spec.block import SpecBlock, resting
from areal.spec.text import PathText


class TraceExport(SpecBlock):
    """Distributed traces (OpenTelemetry) of a part of the prompt groups. Roles need the extra `traces`."""

    endpoint: PathText | None = resting(
        None,
        what="The collector's OTLP/HTTP address, such as http://collector.observability:4318; the environment's "
        "OTEL_EXPORTER_OTLP_ENDPOINT unless given.",
        pattern="^https?://[^/?#]+",
    )
    sample_rate: float = resting(0.01, what="Which part of the groups is traced, the same in every role.", ge=0, le=1)


class Observability(SpecBlock):
    """What others may see of the run while it goes on."""

    traces: TraceExport | None = resting(None, what="Spans of groups and versions, sent by OTLP; none unless given.")
    view: bool = resting(
        False, what="On a cluster: a pod that shows the run in a browser, to whoever may read the job there."
    )
