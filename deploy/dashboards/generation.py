"""Generation and weights: how fast servers sample, and how fast new weights reach them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards.panels import JOB, board, graph

_RATE = "[$__rate_interval]"


def generation() -> dashboard.Dashboard:
    """The board."""
    made = board(
        "areal-generation", "AReaL / Generation and weights", "Servers, their versions, and how weights reach them."
    )
    return (
        made.with_row(dashboard.Row("Servers"))
        .with_panel(
            graph(
                "Tokens generated",
                "Tokens a second by server.",
                "short",
                (f"sum by (pod) (rate(areal_generation_output_tokens_total{{{JOB}}}{_RATE}))", "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Fates of tokens",
                "Tokens a second by what became of them. Served and migrated ones are trained, evaluated ones measure.",
                "short",
                (f"sum by (fate) (rate(areal_generation_tokens_total{{{JOB}}}{_RATE}))", "{{fate}}"),
                (f"sum(rate(areal_generation_reprefilled_tokens_total{{{JOB}}}{_RATE}))", "computed again elsewhere"),
            )
        )
        .with_panel(
            graph(
                "Wasted tokens",
                "Share of generated tokens that were lost, too old, or of groups that ended early, over 30 minutes.",
                "percentunit",
                (
                    f'sum by (rljob) (increase(areal_generation_tokens_total{{{JOB},fate=~"lost|stale|aborted"}}[30m]))'
                    f" / sum by (rljob) (increase(areal_generation_output_tokens_total{{{JOB}}}[30m]))",
                    "{{rljob}}",
                ),
                limit=0.01,
            )
        )
        .with_panel(
            graph(
                "Tokens in flight",
                "Generated tokens of which nothing became yet: of running answers, and of samples that wait.",
                "short",
                (f"sum by (rljob) (areal_generation_tokens_in_flight{{{JOB}}})", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Requests in the engine",
                "Requests running by server.",
                "short",
                (f"sum by (pod) (areal_generation_running{{{JOB}}})", "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Interruptions",
                "Running requests that a new version interrupted, a second. They go on with the new weights.",
                "short",
                (f"sum by (pod) (rate(areal_generation_interruptions_total{{{JOB}}}{_RATE}))", "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Engine's queue",
                "Requests that run in the engine, and that wait for room in it, by server.",
                "short",
                (_engine("num_running_reqs"), "running {{pod}}"),
                (_engine("num_waiting_reqs"), "waiting {{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Engine's cache",
                "Share of the KV cache in use, and of prompt tokens that were in it (SGLang's), by server.",
                "percentunit",
                (_engine("token_usage"), "in use {{pod}}"),
                (_engine("cache_hit_rate"), "hits {{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Engine's pace",
                "Tokens a second as the engine itself measures them, by server.",
                "short",
                (_engine("gen_throughput"), "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Turns on shared cards",
                "Seconds that a server takes to give shared cards up, and to have them again, half and 95 % of them.",
                "s",
                (
                    "histogram_quantile(0.5, sum by (le, to) "
                    f"(rate(areal_generation_switch_seconds_bucket{{{JOB}}}{_RATE})))",
                    "{{to}} half",
                ),
                (
                    "histogram_quantile(0.95, sum by (le, to) "
                    f"(rate(areal_generation_switch_seconds_bucket{{{JOB}}}{_RATE})))",
                    "{{to}} 95 %",
                ),
            )
        )
        .with_panel(
            graph(
                "Servers ready",
                "Generation pods that are ready, and how many there should be.",
                "short",
                (f'sum by (rljob) (areal_rljob_role_ready{{{JOB},role="generation"}})', "{{rljob}} ready"),
                (f'sum by (rljob) (areal_rljob_role_desired{{{JOB},role="generation"}})', "{{rljob}} desired"),
            )
        )
        .with_panel(
            graph(
                "Use of the allowed rollouts",
                "Share of the groups allowed at once that are being generated.",
                "percentunit",
                (
                    f"sum by (rljob) (areal_rollouts_inflight{{{JOB}}})"
                    f" / sum by (rljob) (areal_rollout_capacity{{{JOB}}})",
                    "{{rljob}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Groups by worker",
                "Groups that each worker holds.",
                "short",
                (f"sum by (pod) (areal_worker_groups_held{{{JOB}}})", "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Agents' calls",
                "Calls a second that gateways ended, by what became of them, and those handed on again.",
                "short",
                (f"sum by (outcome) (rate(areal_gateway_calls_total{{{JOB}}}{_RATE}))", "{{outcome}}"),
                (f"sum(rate(areal_gateway_resent_total{{{JOB}}}{_RATE}))", "handed on again"),
            )
        )
        .with_panel(
            graph(
                "Gateways",
                "Workers that each gateway has a stream of, and calls that wait for their answers.",
                "short",
                (f"sum by (pod) (areal_gateway_workers{{{JOB}}})", "workers {{pod}}"),
                (f"sum by (pod) (areal_gateway_calls_running{{{JOB}}})", "calls {{pod}}"),
            )
        )
        .with_panel(
            graph(
                "What agents' calls can't have",
                "Fields a second that had no effect, by name, and conversations that began another sequence.",
                "short",
                (f"sum by (field) (rate(areal_gateway_ignored_total{{{JOB}}}{_RATE}))", "ignored {{field}}"),
                (f"sum by (why) (rate(areal_gateway_forks_total{{{JOB}}}{_RATE}))", "fork {{why}}"),
            )
        )
        .with_row(dashboard.Row("Weights"))
        .with_panel(
            graph(
                "Policy versions",
                "The trainer's version, and the version that each server samples from.",
                "short",
                (f"max by (rljob) (areal_trainer_policy_version{{{JOB}}})", "trainer {{rljob}}"),
                (f"max by (pod) (areal_generation_policy_version{{{JOB}}})", "{{pod}}"),
            )
        )
        .with_panel(
            graph(
                "Versions behind",
                "How far the slowest server is behind the trainer, and what the job allows.",
                "short",
                (
                    f"max by (rljob) (areal_trainer_policy_version{{{JOB}}})"
                    f" - min by (rljob) (areal_generation_policy_version{{{JOB}}})",
                    "{{rljob}}",
                ),
                (f"max by (rljob) (areal_rljob_max_staleness{{{JOB}}})", "maxStaleness {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Time of a weight sync",
                "Mean seconds until a server serves a version: reading, checking and loading it.",
                "s",
                (
                    f"sum by (mode, stage) (rate(areal_weight_sync_duration_seconds_sum{{{JOB}}}{_RATE}))"
                    f" / sum by (mode, stage) (rate(areal_weight_sync_duration_seconds_count{{{JOB}}}{_RATE}))",
                    "{{mode}} {{stage}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Refused versions",
                "Weight versions that servers refused or could not load, by reason.",
                "short",
                (f"sum by (reason) (increase(areal_weight_sync_failures_total{{{JOB}}}[5m]))", "{{reason}}"),
            )
        )
        .with_panel(
            graph(
                "Size of a version",
                "Bytes of the newest version.",
                "bytes",
                (f"max by (rljob) (areal_weight_bytes{{{JOB}}})", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Read over the network",
                "Bytes of models and versions that servers without a mount read, a second.",
                "Bps",
                (f"sum by (rljob) (rate(areal_volume_read_bytes_total{{{JOB}}}[$__rate_interval]))", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Evaluated version",
                "Policy version of the newest finished evaluation.",
                "short",
                (f"max by (rljob) (areal_evaluation_version{{{JOB}}})", "{{rljob}}"),
            )
        )
    )


def _engine(figure: str) -> str:
    return f'sum by (pod) (areal_generation_engine{{{JOB},figure="{figure}"}})'
