"""Fleet overview: every job of the cluster in one look."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, stat

from deploy.dashboards.panels import JOB, board, graph, number, rows

_BY_JOB = "max by (namespace, rljob)"


def fleet() -> dashboard.Dashboard:
    """The board."""
    return (
        board("areal-fleet", "AReaL / Fleet", "All jobs: which run, which stand still, how far they are.")
        .with_panel(_count("Running", "Jobs that train now.", "Running"))
        .with_panel(_count("Stalled", "Jobs whose pods run but that make no steps.", "Stalled", bad_above=1))
        .with_panel(_count("Suspended", "Jobs that wait with their state kept.", "Suspended"))
        .with_panel(_count("Complete", "Jobs that made all their steps.", "Complete"))
        .with_panel(_count("Failed", "Jobs that ended without completing.", "Failed", bad_above=1))
        .with_panel(_count("Rejected", "Jobs that the operator doesn't accept.", "Rejected", bad_above=1))
        .with_panel(
            rows(
                "Jobs",
                "Each job: its step, its newest policy version, its reward and its restarts.",
                "short",
                (f"{_BY_JOB} (areal_rljob_progress_step{{{JOB}}})", "step"),
                (f"{_BY_JOB} (areal_rljob_max_steps{{{JOB}}})", "of"),
                (f"{_BY_JOB} (areal_rljob_policy_version{{{JOB}}})", "policy version"),
                (f"{_BY_JOB} (areal_rljob_reward{{{JOB}}})", "reward"),
                (f"{_BY_JOB} (areal_rljob_restarts_total{{{JOB}}})", "restarts"),
            )
        )
        .with_panel(
            graph(
                "Jobs by status",
                "How many jobs have each summary.",
                "short",
                (f"sum by (summary) (areal_rljob_status{{{JOB}}})", "{{summary}}"),
            )
        )
        .with_panel(
            graph(
                "Progress",
                "Share of its steps that each job has made.",
                "percentunit",
                (
                    f"{_BY_JOB} (areal_rljob_progress_step{{{JOB}}}) / {_BY_JOB} (areal_rljob_max_steps{{{JOB}}})",
                    "{{namespace}}/{{rljob}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Reward",
                "Mean reward of the last batch.",
                "short",
                (f"{_BY_JOB} (areal_rljob_reward{{{JOB}}})", "{{namespace}}/{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Tokens trained",
                "Tokens a second that reach a gradient.",
                "short",
                (
                    f"sum by (namespace, rljob) (rate(areal_trainer_tokens_total{{{JOB}}}[$__rate_interval]))",
                    "{{namespace}}/{{rljob}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Trainer restarts",
                "Restarts of the trainer's gang in the last hour.",
                "short",
                (f"{_BY_JOB} (increase(areal_rljob_restarts_total{{{JOB}}}[1h]))", "{{namespace}}/{{rljob}}"),
                limit=3,
            )
        )
        .with_panel(
            graph(
                "GPUs held",
                "GPUs that pods with a node ask for.",
                "short",
                (f"{_BY_JOB} (areal_rljob_gpus{{{JOB}}})", "{{namespace}}/{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "GPU hours",
                "GPUs times hours that each job has held them.",
                "short",
                (f"{_BY_JOB} (areal_rljob_gpu_seconds_total{{{JOB}}}) / 3600", "{{namespace}}/{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Pods missing",
                "Pods that a role should have and that are not ready.",
                "short",
                (
                    f"sum by (namespace, rljob, role) (areal_rljob_role_desired{{{JOB}}})"
                    f" - sum by (namespace, rljob, role) (areal_rljob_role_ready{{{JOB}}}) > 0",
                    "{{namespace}}/{{rljob}} {{role}}",
                ),
            )
        )
    )


def _count(title: str, description: str, summary: str, bad_above: float | None = None) -> stat.Panel:
    expression = f'count(areal_rljob_status{{{JOB},summary="{summary}"}} == 1) or vector(0)'
    return number(title, description, "short", (expression, summary), bad_above=bad_above)
