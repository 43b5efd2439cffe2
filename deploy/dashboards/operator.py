"""The operator: is it there, does it hear, does it keep up."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards.panels import board, graph, number

_RATE = "[$__rate_interval]"


def operator() -> dashboard.Dashboard:
    """The board."""
    made = board(
        "areal-operator", "AReaL / Operator", "The operator's own health: leader, watches, queue, API.", jobs=False
    )
    return (
        made.with_panel(
            number(
                "Leaders",
                "Replicas that hold the lease: 1.",
                "short",
                ("sum(areal_operator_leader)", "leaders"),
                bad_above=2,
            )
        )
        .with_panel(number("Replicas", "Replicas that answer.", "short", ("count(areal_operator_info)", "replicas")))
        .with_panel(
            number("Jobs", "Jobs that the operator knows.", "short", ("count(areal_rljob_info) or vector(0)", "jobs"))
        )
        .with_panel(
            number(
                "Due",
                "Jobs that are due and wait for a worker.",
                "short",
                ("sum(areal_operator_queue_depth)", "due"),
                bad_above=50,
            )
        )
        .with_panel(
            number(
                "Quietest watch",
                "Time since the watch that has been silent longest heard anything.",
                "s",
                ("time() - min(areal_operator_watch_last_event_timestamp_seconds)", "silence"),
                bad_above=900,
            )
        )
        .with_panel(
            number(
                "Errors",
                "Share of the last ten minutes' reconciles that failed.",
                "percentunit",
                (
                    '(sum(rate(areal_operator_reconcile_total{result="error"}[10m])) or vector(0))'
                    " / (sum(rate(areal_operator_reconcile_total[10m])) > 0)",
                    "errors",
                ),
                bad_above=0.2,
            )
        )
        .with_panel(
            graph(
                "Reconciles",
                "Reconciles a second by result.",
                "short",
                (f"sum by (result) (rate(areal_operator_reconcile_total{_RATE}))", "{{result}}"),
            )
        )
        .with_panel(
            graph(
                "Time of a reconcile",
                "Median and 99th percentile.",
                "s",
                (_quantile(0.5, "areal_operator_reconcile_duration_seconds"), "median"),
                (_quantile(0.99, "areal_operator_reconcile_duration_seconds"), "p99"),
            )
        )
        .with_panel(
            graph(
                "Wait for a worker",
                "From being due to being worked on: median and 99th percentile.",
                "s",
                (_quantile(0.5, "areal_operator_queue_latency_seconds"), "median"),
                (_quantile(0.99, "areal_operator_queue_latency_seconds"), "p99"),
                limit=30,
            )
        )
        .with_panel(
            graph(
                "Watches begun anew",
                "By resource and cause. `expired` now and then is normal.",
                "short",
                (
                    "sum by (resource, cause) (increase(areal_operator_watch_restarts_total[5m]))",
                    "{{resource}} {{cause}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Requests to the API server",
                "Requests a second by method and status.",
                "reqps",
                (f"sum by (method, code) (rate(areal_operator_api_requests_total{_RATE}))", "{{method}} {{code}}"),
            )
        )
        .with_panel(
            graph(
                "Requests held back",
                "Requests that wait for the operator's own rate limit.",
                "short",
                ("sum by (pod) (areal_operator_api_waiting)", "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Objects in memory",
                "By resource.",
                "short",
                ("max by (resource) (areal_operator_cached_objects)", "{{resource}}"),
            )
        )
        .with_panel(
            graph(
                "Lag of the event loop",
                "How late the loop is; above 30 s the liveness probe ends the process.",
                "s",
                ("max by (pod) (areal_operator_loop_lag_seconds)", "{{pod}}"),
                limit=30,
            )
        )
        .with_panel(
            graph(
                "Memory",
                "Resident bytes of each replica.",
                "bytes",
                ("process_resident_memory_bytes and on (pod, namespace) areal_operator_info", "{{pod}}"),
            )
        )
    )


def _quantile(q: float, metric: str) -> str:
    return f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{_RATE})))"
