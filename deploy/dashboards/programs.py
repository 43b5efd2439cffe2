"""The row of the job's board about programs in the sandbox: whether judging keeps up, holds, and is being cheated."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards.panels import JOB, graph

_RATE = "[$__rate_interval]"


def programs_row(made: dashboard.Dashboard) -> dashboard.Dashboard:
    """Adds the row."""
    return (
        made.with_row(dashboard.Row("Programs"))
        .with_panel(
            graph(
                "Judgements",
                "Judgements a second by status, remembered ones among them; statuses of the machine carry no score.",
                "short",
                (f"sum by (status) (rate(areal_sandbox_judgements_total{{{JOB}}}{_RATE}))", "{{status}}"),
                (f"sum by (status) (rate(areal_sandbox_executions_total{{{JOB}}}{_RATE}))", "executions {{status}}"),
                (f"sum(rate(areal_sandbox_retries_total{{{JOB}}}{_RATE}))", "tried again"),
            )
        )
        .with_panel(
            graph(
                "Programs that wait",
                "Requests that wait for a slot, and slots in use: a line that grows asks for more replicas.",
                "short",
                (f"sum by (priority) (areal_sandbox_queue_depth{{{JOB}}})", "waiting {{priority}}"),
                (f"sum(areal_sandbox_running{{{JOB}}})", "running"),
                (f"sum(areal_sandbox_slots{{{JOB}}})", "slots"),
            )
        )
        .with_panel(
            graph(
                "Wait of a program",
                "99th percentile from a request to its slot, and the age of the oldest that still waits.",
                "s",
                (_quantile("areal_sandbox_wait_seconds", "priority"), "{{priority}}"),
                (f"max by (priority) (areal_sandbox_queue_age_seconds{{{JOB}}})", "oldest {{priority}}"),
            )
        )
        .with_panel(
            graph(
                "Time of a judgement",
                "99th percentile by phase.",
                "s",
                (_quantile("areal_sandbox_phase_seconds", "phase"), "{{phase}}"),
            )
        )
        .with_panel(
            graph(
                "Runs and kills",
                "Processes a second that ran a program, and those killed, by what they exceeded.",
                "short",
                (f"sum(rate(areal_sandbox_runs_total{{{JOB}}}{_RATE}))", "runs"),
                (f"sum by (reason) (rate(areal_sandbox_kills_total{{{JOB}}}{_RATE}))", "{{reason}}"),
                (f"sum(rate(areal_sandbox_spare_misses_total{{{JOB}}}{_RATE}))", "without a prepared cell"),
                (f"sum(rate(areal_sandbox_zygote_restarts_total{{{JOB}}}{_RATE}))", "zygotes replaced"),
            )
        )
        .with_panel(
            graph(
                "Signs of cheating",
                "Judged programs a second that show one; a rise means that the model found something to exploit.",
                "short",
                (f"sum by (flag) (rate(areal_sandbox_flags_total{{{JOB}}}{_RATE}))", "{{flag}}"),
            )
        )
        .with_panel(
            graph(
                "Sandbox",
                "The weakest tier of the reward pods, 0 to 4, and how many pass their self-test.",
                "short",
                (f"min(areal_sandbox_tier{{{JOB}}})", "tier"),
                (f"sum(areal_sandbox_ready{{{JOB}}})", "ready"),
            )
        )
        .with_panel(
            graph(
                "Memory of programs",
                "Most memory that a judged program took lately, and bytes of uploaded suites.",
                "bytes",
                (f"max(areal_sandbox_memory_peak_bytes{{{JOB}}})", "largest program"),
                (f"sum(areal_sandbox_suites_bytes{{{JOB}}})", "suites"),
            )
        )
    )


def _quantile(metric: str, by: str) -> str:
    return f"histogram_quantile(0.99, sum by ({by}, le) (rate({metric}_bucket{{{JOB}}}{_RATE})))"
