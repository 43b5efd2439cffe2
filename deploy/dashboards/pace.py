"""The row of the job's board about time: what the trainer, the servers and the GPUs spend it on."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards.panels import JOB, graph

_RATE = "[$__rate_interval]"
_SPENT = f"rate(areal_trainer_step_duration_seconds_sum{{{JOB}}}{_RATE})"
_SWAPS = f"rate(areal_weight_sync_duration_seconds_sum{{{JOB}}}{_RATE})"
_PODS = 'exported_namespace=~"$namespace",exported_pod=~"($rljob)-.+"'
"""DCGM's exporter has names of its own for its pod; where its scrape honours labels, they are `namespace` and `pod`."""


def pace_row(made: dashboard.Dashboard) -> dashboard.Dashboard:
    """Adds the row."""
    return (
        made.with_row(dashboard.Row("Pace"))
        .with_panel(
            graph(
                "Bubbles of the trainer",
                "Share of its time by phase: all but prox and train is a bubble. No phase: restarts, and steps under "
                "way.",
                "percentunit",
                (f"sum by (rljob, phase) ({_SPENT})", "{{phase}} {{rljob}}"),
                (f"clamp_min(1 - sum by (rljob) ({_SPENT}), 0)", "no phase {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Bubbles of the servers",
                "Share of its time that a server swaps weights, by stage, and that it has no request.",
                "percentunit",
                (f"sum by (pod, mode, stage) ({_SWAPS})", "{{pod}} {{mode}} {{stage}}"),
                (
                    f"1 - avg_over_time((sum by (pod) (areal_generation_running{{{JOB}}}) > bool 0)[5m:10s])",
                    "{{pod}} without a request",
                ),
            )
        )
        .with_panel(
            graph(
                "Processors of the roles",
                "Processor cores that each role's own processes use; engines and gangs of ranks come on top.",
                "short",
                (f"sum by (role) (rate(process_cpu_seconds_total{{{JOB}}}{_RATE}))", "{{role}}"),
            )
        )
        .with_panel(
            graph(
                "GPUs in use",
                "Share of the time that a kernel ran, by card, as NVIDIA's DCGM exporter tells it.",
                "percent",
                *_of_cards("DCGM_FI_DEV_GPU_UTIL{{{pods}}}"),
            )
        )
        .with_panel(
            graph(
                "Memory of GPUs",
                "Share in use, by card, as NVIDIA's DCGM exporter tells it.",
                "percentunit",
                *_of_cards(
                    "DCGM_FI_DEV_FB_USED{{{pods}}} / (DCGM_FI_DEV_FB_USED{{{pods}}} + DCGM_FI_DEV_FB_FREE{{{pods}}})"
                ),
            )
        )
    )


def _of_cards(expression: str) -> list[tuple[str, str]]:
    """A query for both namings of the pods that have the cards."""
    return [
        (expression.format(pods=_PODS), "{{exported_pod}} {{gpu}}"),
        (expression.format(pods=_PODS.replace("exported_", "")), "{{pod}} {{gpu}}"),
    ]
