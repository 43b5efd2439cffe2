"""The `observability` block."""

from areal.spec.block import Mutability, SpecBlock, knob
from areal.spec.text import PathText


class TraceExport(SpecBlock):
    """Distributed traces (OpenTelemetry) of a part of the prompt groups. Roles need the extra `traces`."""

    endpoint: PathText | None = knob(
        None,
        what="The collector's OTLP/HTTP address, such as http://collector.observability:4318; the environment's "
        "OTEL_EXPORTER_OTLP_ENDPOINT unless given.",
        change=Mutability.RESUME,
        pattern="^https?://[^/?#]+",
    )
    sample_rate: float = knob(
        0.01, what="Which part of the groups is traced, the same in every role.", change=Mutability.RESUME, ge=0, le=1
    )


class Observability(SpecBlock):
    """What others may see of the run while it goes on."""

    traces: TraceExport | None = knob(
        None, what="Spans of groups and versions, sent by OTLP; none unless given.", change=Mutability.RESUME
    )
    view: bool = knob(
        False,
        what="On a cluster: a pod that shows the run in a browser, to whoever may read the job there.",
        change=Mutability.RESUME,
    )
