"""One RLJob: does it learn, does it flow, does it break."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards.pace import pace_row
from deploy.dashboards.panels import JOB, board, graph, number
from deploy.dashboards.programs import programs_row

_RATE = "[$__rate_interval]"


def job() -> dashboard.Dashboard:
    """The board."""
    made = board("areal-rljob", "AReaL / One RLJob", "One job: learning, flow of groups, staleness, restarts, audit.")
    return _trouble(programs_row(_flow(pace_row(_learning(_now(made))))))


def _now(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Now"))
        .with_panel(
            number("Step", "Step the trainer is at.", "short", (f"max(areal_rljob_progress_step{{{JOB}}})", "step"))
        )
        .with_panel(
            number(
                "Left",
                "Time to the last step at the pace of the last half hour.",
                "s",
                (
                    f"(max(areal_rljob_max_steps{{{JOB}}}) - max(areal_rljob_progress_step{{{JOB}}}))"
                    f" / (sum(rate(areal_trainer_steps_total{{{JOB}}}[30m])) > 0)",
                    "left",
                ),
            )
        )
        .with_panel(
            number(
                "Reward",
                "Mean reward of the last batch.",
                "short",
                (f"max(areal_trainer_reward_mean{{{JOB}}})", "reward"),
            )
        )
        .with_panel(
            number(
                "Evaluation",
                "Mean score of the newest finished evaluation.",
                "short",
                (f"max(areal_evaluation_score{{{JOB}}})", "score"),
            )
        )
        .with_panel(
            number(
                "Restarts",
                "Restarts of the trainer's gang so far.",
                "short",
                (f"max(areal_rljob_restarts_total{{{JOB}}})", "restarts"),
                bad_above=3,
            )
        )
        .with_panel(
            number(
                "Staleness violations",
                "Groups refused for their age when the trainer took them. Must stay 0.",
                "short",
                (f"sum(areal_staleness_violations_total{{{JOB}}})", "violations"),
                bad_above=1,
            )
        )
    )


ROWS = (
    ("Rewards of a batch", "Mean and standard deviation of the rewards, one a sample.", ("reward_mean", "reward_std")),
    (
        "Groups that teach nothing",
        "Groups whose rewards are all the same, beside all groups of the batch.",
        ("zero_variance_groups", "groups"),
    ),
    ("Entropy", "Mean entropy of a trained token, in nats. Towards 0 the policy stops exploring.", ("entropy",)),
    (
        "Length of answers",
        "Sampled tokens of an answer: mean and 95th percentile.",
        ("answer_tokens_mean", "answer_tokens_p95"),
    ),
    (
        "Truncated and rejected",
        "Share of answers that the length limit cut, and of tokens that rejection sampling leaves out.",
        ("truncated_ratio", "rejected_ratio"),
    ),
    (
        "Log-probability mismatch",
        "Between the engine's and the trainer's log-probabilities of the same tokens, in nats: mean, and most.",
        ("logprob_mismatch", "logprob_mismatch_max"),
    ),
    (
        "Weights of the behaviour policy",
        "Mean and most of the importance weights of decoupled PPO; the mean stays near 1.",
        ("behaviour_weight_mean", "behaviour_weight_max"),
    ),
    ("KL to the reference", "KL of the policy from the reference model, a token.", ("reference_kl",)),
    ("Behaviour gap", "Between the behaviour and the proximal policy, a token, in nats.", ("behaviour_gap",)),
    ("Loss", "What the optimizer minimises, of the last batch.", ("loss",)),
    ("Learning rate", "Of the last update.", ("learning_rate",)),
    ("Advantages", "Mean and standard deviation, of trained sequences.", ("advantage_mean", "advantage_std")),
    (
        "Values and returns",
        "Of a critic: means, and the share of values that were clipped.",
        ("value_mean", "return_mean", "value_clip_ratio"),
    ),
    (
        "Routers",
        "Of a mixture of experts with router losses: load balancing (where all are alike, the experts that a token "
        "goes to), z-loss, and the busiest expert's load over the mean.",
        ("router_aux_loss", "router_z_loss", "router_load_max"),
    ),
    ("Tokens of a step", "All tokens of the batch, and those that reach a gradient.", ("tokens", "trained_tokens")),
    (
        "Batch",
        "Samples of the batch, the sequences that they are trained as, and groups that were begun before it was whole.",
        ("samples", "sequences", "groups_begun"),
    ),
    (
        "Updates",
        "Of the optimizer in the step: made, and left out for not being finite.",
        ("updates", "skipped_updates"),
    ),
    ("Staleness of a batch", "Versions behind of its samples: mean and most.", ("staleness_mean", "staleness_max")),
    ("Tokens a second of compute", "Trained tokens by the seconds of prox and train.", ("tokens_per_s",)),
    ("Wall time of a step", "Seconds from one step to the next.", ("wall_s",)),
)
"""Title, description and figures of a panel about the numbers of metrics.jsonl."""


def _learning(made: dashboard.Dashboard) -> dashboard.Dashboard:
    made = _measured(made)
    for title, description, figures in ROWS:
        series = [(f'areal_trainer_row{{{JOB},figure="{name}"}}', f"{name} {{{{rljob}}}}") for name in figures]
        made = made.with_panel(graph(title, f"{description} The last step's.", "short", *series))
    row = f"areal_trainer_row{{{JOB}"
    spreadless = f'{row},figure="zero_variance_groups"}} / ignoring (figure) {row},figure="groups"}}'
    return made.with_panel(
        graph(
            "Rejected and zero-variance",
            "Shares of the last batch that teach nothing: tokens that rejection sampling leaves out, groups whose "
            "rewards are all the same.",
            "percentunit",
            (f'{row},figure="rejected_ratio"}}', "rejected tokens {{rljob}}"),
            (spreadless, "zero-variance groups {{rljob}}"),
        )
    )


def _measured(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Learning"))
        .with_panel(
            graph(
                "Reward and evaluation",
                "Mean reward of each batch, and mean score of each evaluation on held-out rows.",
                "short",
                (f"areal_trainer_reward_mean{{{JOB}}}", "reward {{rljob}}"),
                (f"areal_evaluation_score{{{JOB}}}", "evaluation {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Figures of the job's own code",
                "Parts of the reward, and what workflows and hooks measure: means of the last batch, by name.",
                "short",
                (f"areal_trainer_figure{{{JOB}}}", "{{figure}} {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Evaluation by set",
                "Sampled answers (avg@n, pass@k) and each set's mean, of the newest finished evaluation.",
                "short",
                (f'areal_evaluation_figure{{{JOB},figure!="rows"}}', "{{figure}} {{set}} {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Critic",
                "Loss and gradient norm of the critic, and the share of the returns' variance that it explains: "
                "below 0 it is worse than their mean.",
                "short",
                (f'areal_trainer_row{{{JOB},figure="value_loss"}}', "loss {{rljob}}"),
                (f'areal_trainer_row{{{JOB},figure="explained_variance"}}', "explained {{rljob}}"),
                (f'areal_trainer_row{{{JOB},figure="critic_grad_norm"}}', "gradient norm {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Gradient norm",
                "Before clipping. A sudden tenfold is how divergence begins.",
                "short",
                (f'areal_trainer_row{{{JOB},figure="grad_norm"}}', "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "KL and clipping",
                "Approximate KL of the current to the proximal policy, of the policy to its teacher, and the share of "
                "tokens that were clipped.",
                "short",
                (f'areal_trainer_row{{{JOB},figure="approx_kl"}}', "KL {{rljob}}"),
                (f'areal_trainer_row{{{JOB},figure="teacher_kl"}}', "KL to the teacher {{rljob}}"),
                (f'areal_trainer_row{{{JOB},figure="clip_ratio"}}', "clipped {{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Time of a step by phase",
                "Mean seconds of each phase: wait (for groups), take, prox, train, publish, checkpoint.",
                "s",
                (
                    f"sum by (phase) (rate(areal_trainer_step_duration_seconds_sum{{{JOB}}}{_RATE}))"
                    f" / sum by (phase) (rate(areal_trainer_step_duration_seconds_count{{{JOB}}}{_RATE}))",
                    "{{phase}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Staleness of trained groups",
                "Median and 99th percentile, in policy versions.",
                "short",
                (_quantile(0.5, "areal_trainer_staleness_steps"), "median"),
                (_quantile(0.99, "areal_trainer_staleness_steps"), "p99"),
                (f"max(areal_rljob_max_staleness{{{JOB}}})", "maxStaleness"),
            )
        )
        .with_panel(
            graph(
                "Recording",
                "Bytes a second written about samples and tokens, and records a second dropped: a full queue or disk.",
                "short",
                (f"sum(rate(areal_record_bytes_total{{{JOB}}}{_RATE}))", "bytes"),
                (f"sum(rate(areal_record_dropped_total{{{JOB}}}{_RATE}))", "dropped records"),
            )
        )
        .with_panel(
            graph(
                "Tokens trained",
                "Tokens a second that reach a gradient.",
                "short",
                (f"sum by (rljob) (rate(areal_trainer_tokens_total{{{JOB}}}{_RATE}))", "{{rljob}}"),
            )
        )
    )


def _flow(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Flow of groups"))
        .with_panel(
            graph(
                "Groups",
                "Being generated, allowed at once, and what the gate would admit now.",
                "short",
                (f"sum(areal_rollouts_inflight{{{JOB}}})", "in flight"),
                (f"sum(areal_rollout_capacity{{{JOB}}})", "capacity"),
                (f"sum(areal_gate_room_groups{{{JOB}}})", "gate's room"),
            )
        )
        .with_panel(
            graph(
                "Groups closed",
                "Groups a second by outcome.",
                "short",
                (f"sum by (outcome) (rate(areal_groups_total{{{JOB}}}{_RATE}))", "{{outcome}}"),
            )
        )
        .with_panel(
            graph(
                "Tombstones",
                "Groups that ended untrained, by reason. infra, deadline and poison should stay 0.",
                "short",
                (f"sum by (reason) (increase(areal_tombstones_total{{{JOB}}}[5m]))", "{{reason}}"),
            )
        )
        .with_panel(
            graph(
                "Infrastructure faults",
                "Share of episodes that ended by a fault of the platform in 15 minutes; they are tried again.",
                "percentunit",
                (
                    f'sum by (rljob) (rate(areal_episode_ends_total{{{JOB},end="infra"}}[15m]))'
                    f" / sum by (rljob) (rate(areal_episode_ends_total{{{JOB}}}[15m]))",
                    "{{rljob}}",
                ),
                limit=0.01,
            )
        )
        .with_panel(
            graph(
                "Time of a group",
                "From its first lease to its closing: median and 99th percentile.",
                "s",
                (_quantile(0.5, "areal_rollout_duration_seconds"), "median"),
                (_quantile(0.99, "areal_rollout_duration_seconds"), "p99"),
                (_quantile(0.99, "areal_rollout_queue_wait_seconds"), "p99 from closing to being taken"),
            )
        )
        .with_panel(
            graph(
                "Trainer waits for groups",
                "Share of its time. High: generation or rewards are the bottleneck.",
                "percentunit",
                (f"max by (rljob) (rate(areal_trainer_data_wait_seconds_total{{{JOB}}}{_RATE}))", "{{rljob}}"),
                limit=0.5,
            )
        )
        .with_panel(
            graph(
                "Ledger's bytes",
                "Bytes reserved or held, and the budget.",
                "bytes",
                (f"sum(areal_replay_bytes{{{JOB}}})", "used"),
                (f"sum(areal_replay_budget_bytes{{{JOB}}})", "budget"),
            )
        )
        .with_panel(
            graph(
                "Groups in the ledger",
                "Closed groups that no trainer took yet, and groups with some of their samples.",
                "short",
                (f"sum(areal_replay_ready_groups{{{JOB}}})", "ready"),
                (f"sum(areal_replay_partial_groups{{{JOB}}})", "partial"),
            )
        )
        .with_panel(
            graph(
                "Rewards",
                "Items a second by verdict; fault_… and timeout are answers without a score.",
                "short",
                (
                    f"sum by (verifier, verdict) (rate(areal_reward_requests_total{{{JOB}}}{_RATE}))",
                    "{{verifier}} {{verdict}}",
                ),
            )
        )
        .with_panel(
            graph(
                "Boxes",
                "Boxes that run beside how many may, and those that ended a second, by cause.",
                "short",
                (f"sum(areal_boxes_live{{{JOB}}})", "live"),
                (f"sum(areal_boxes_capacity{{{JOB}}})", "capacity"),
                (f"sum by (cause) (rate(areal_boxes_ended_total{{{JOB}}}{_RATE}))", "ended: {{cause}}"),
            )
        )
        .with_panel(
            graph(
                "Time of a reward",
                "99th percentile by verifier.",
                "s",
                (_quantile(0.99, "areal_reward_duration_seconds", "verifier"), "{{verifier}}"),
            )
        )
    )


def _trouble(made: dashboard.Dashboard) -> dashboard.Dashboard:
    return (
        made.with_row(dashboard.Row("Trouble"))
        .with_panel(
            graph(
                "Ready pods by role",
                "Ready pods; a line below the desired count is a pod that is missing.",
                "short",
                (f"sum by (role) (areal_rljob_role_ready{{{JOB}}})", "{{role}} ready"),
                (f"sum by (role) (areal_rljob_role_desired{{{JOB}}})", "{{role}} desired"),
            )
        )
        .with_panel(
            graph(
                "Epoch",
                "Incarnation of the trainer's gang: grows by one with every restart.",
                "short",
                (f"max by (rljob) (areal_rljob_epoch{{{JOB}}})", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Age of the last checkpoint",
                "What a restart of the trainer would repeat.",
                "s",
                (f"time() - max by (rljob) (areal_checkpoint_last_success_timestamp_seconds{{{JOB}}})", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Time of a checkpoint",
                "Writing and sealing it: median and 99th percentile.",
                "s",
                (_quantile(0.5, "areal_checkpoint_duration_seconds"), "median"),
                (_quantile(0.99, "areal_checkpoint_duration_seconds"), "p99"),
            )
        )
        .with_panel(
            graph(
                "Size of the last checkpoint",
                "What checkpoint.keep multiplies on the volume.",
                "bytes",
                (f"max by (rljob) (areal_checkpoint_bytes{{{JOB}}})", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Age of the copy in the object store",
                "What a lost volume would cost, of a job with `storage.store`.",
                "s",
                (f"time() - max by (rljob) (areal_archive_copied_timestamp_seconds{{{JOB}}})", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Copied to the object store",
                "Bytes a second that were sent; passes that failed in five minutes, by reason.",
                "Bps",
                (f"sum by (rljob) (rate(areal_archive_sent_bytes_total{{{JOB}}}[$__rate_interval]))", "{{rljob}}"),
                (f"sum by (reason) (increase(areal_archive_failures_total{{{JOB}}}[5m]))", "failed: {{reason}}"),
            )
        )
        .with_panel(
            graph(
                "Skipped updates",
                "Updates that were not finite.",
                "short",
                (f"sum by (rljob) (increase(areal_trainer_skipped_steps_total{{{JOB}}}[5m]))", "{{rljob}}"),
            )
        )
        .with_panel(
            graph(
                "Samples refused and sent again",
                "Duplicates that the ledger refused, and samples sent again after it lost data.",
                "short",
                (f"sum(increase(areal_replay_duplicates_refused_total{{{JOB}}}[5m]))", "duplicates refused"),
                (f"sum(increase(areal_replay_resent_total{{{JOB}}}[5m]))", "sent again"),
            )
        )
        .with_panel(
            graph(
                "Episodes by outcome",
                "Episodes a second that workers ended.",
                "short",
                (f"sum by (outcome) (rate(areal_worker_episodes_total{{{JOB}}}{_RATE}))", "{{outcome}}"),
            )
        )
    )


def _quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket{{{JOB}}}{_RATE})))"
