"""Every metric that this project serves, declared once: name, type, labels, help.

Dashboards and alerts are checked against this list, and a process can't serve a metric that is not in it.
"""

from dataclasses import dataclass
from enum import StrEnum


class Type(StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scope(StrEnum):
    """Whom a metric speaks of, and who serves it."""

    ROLE = "role"  # one process of a job, which serves it itself
    JOB = "job"  # a job as its resource describes it; served by the operator that leads
    OPERATOR = "operator"  # one operator process

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels that every metric of this scope has before its own."""
        return {Scope.ROLE: ("namespace", "rljob", "role"), Scope.JOB: ("namespace", "rljob"), Scope.OPERATOR: ()}[self]


@dataclass(frozen=True)
class Metric:
    """One metric. The labels of its scope are added to `labels`."""

    name: str
    type: Type
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    scope: Scope = Scope.ROLE


_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_SHORT_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)

_ALL = [
    # trainer
    Metric("areal_trainer_steps_total", Type.COUNTER, "Batches consumed, skipped updates included"),
    Metric("areal_trainer_skipped_steps_total", Type.COUNTER, "Updates skipped because they were not finite"),
    Metric("areal_trainer_step_duration_seconds", Type.HISTOGRAM, "Time of a step by phase", ("phase",), _SECONDS),
    Metric("areal_trainer_policy_version", Type.GAUGE, "Version that the trainer holds"),
    Metric("areal_trainer_tokens_total", Type.COUNTER, "Tokens trained"),
    Metric("areal_trainer_reward_mean", Type.GAUGE, "Mean reward of the last batch"),
    Metric("areal_trainer_row", Type.GAUGE, "A number of the last step, as metrics.jsonl names it", ("figure",)),
    Metric("areal_trainer_figure", Type.GAUGE, "Mean of a figure that the job's own code names", ("figure",)),
    Metric("areal_trainer_staleness_steps", Type.HISTOGRAM, "Staleness of consumed groups", (), _STEPS),
    Metric("areal_trainer_data_wait_seconds_total", Type.COUNTER, "Time spent waiting for groups"),
    # controller
    Metric("areal_rollouts_inflight", Type.GAUGE, "Groups being generated"),
    Metric("areal_rollout_capacity", Type.GAUGE, "Groups that may be generated at once"),
    Metric("areal_groups_total", Type.COUNTER, "Groups closed, by outcome", ("outcome",)),
    Metric("areal_tombstones_total", Type.COUNTER, "Groups that ended untrained, by reason", ("reason",)),
    Metric("areal_episode_ends_total", Type.COUNTER, "Episodes by how they ended, failed tries included", ("end",)),
    Metric("areal_gate_room_groups", Type.GAUGE, "Groups that the gate would admit now"),
    Metric("areal_staleness_violations_total", Type.COUNTER, "Groups refused at take for their age: must stay 0"),
    Metric("areal_rollout_duration_seconds", Type.HISTOGRAM, "From first lease to closing", (), _SECONDS),
    Metric("areal_rollout_queue_wait_seconds", Type.HISTOGRAM, "From closing to being taken", (), _SECONDS),
    Metric("areal_evaluation_score", Type.GAUGE, "Mean score of the newest finished evaluation"),
    Metric("areal_evaluation_version", Type.GAUGE, "Policy version of the newest finished evaluation"),
    Metric(
        "areal_evaluation_figure",
        Type.GAUGE,
        "avg@n and pass@k of the newest evaluation, and each set's mean and rows",
        ("set", "figure"),
    ),
    # generation
    Metric("areal_generation_policy_version", Type.GAUGE, "Version that this server samples from"),
    Metric("areal_generation_interruptions_total", Type.COUNTER, "Running requests interrupted by a swap"),
    Metric("areal_generation_output_tokens_total", Type.COUNTER, "Tokens that this server made"),
    Metric("areal_generation_tokens_total", Type.COUNTER, "Tokens made, by what became of each", ("fate",)),
    Metric("areal_generation_tokens_in_flight", Type.GAUGE, "Tokens made, of which nothing became yet"),
    Metric("areal_generation_reprefilled_tokens_total", Type.COUNTER, "Tokens sent elsewhere to be computed again"),
    Metric("areal_generation_running", Type.GAUGE, "Requests in the engine"),
    Metric("areal_generation_engine", Type.GAUGE, "A number of the engine, as its /v1/loads names it", ("figure",)),
    Metric("areal_generation_switch_seconds", Type.HISTOGRAM, "Time to give up or use shared cards", ("to",), _SECONDS),
    # weights
    Metric("areal_weight_sync_duration_seconds", Type.HISTOGRAM, "Time of a weight sync", ("mode", "stage"), _SECONDS),
    Metric("areal_weight_sync_failures_total", Type.COUNTER, "Refused weight versions", ("reason",)),
    Metric("areal_weight_bytes", Type.GAUGE, "Bytes of the newest version"),
    Metric("areal_volume_read_bytes_total", Type.COUNTER, "Bytes of files that servers without a mount read"),
    # replay
    Metric("areal_replay_ready_groups", Type.GAUGE, "Closed groups that no trainer took yet"),
    Metric("areal_replay_partial_groups", Type.GAUGE, "Groups with some samples"),
    Metric("areal_replay_bytes", Type.GAUGE, "Bytes reserved or held"),
    Metric("areal_replay_budget_bytes", Type.GAUGE, "Byte budget"),
    Metric("areal_replay_duplicates_refused_total", Type.COUNTER, "Samples that were in the ledger already"),
    Metric("areal_replay_resent_total", Type.COUNTER, "Samples sent again after the ledger lost data"),
    # reward
    Metric("areal_reward_requests_total", Type.COUNTER, "Scored items by verdict", ("verifier", "verdict")),
    Metric("areal_reward_duration_seconds", Type.HISTOGRAM, "Time of an item", ("verifier",), _SECONDS),
    Metric("areal_reward_inflight", Type.GAUGE, "Items being scored"),
    Metric("areal_reward_capacity", Type.GAUGE, "Items that can be scored at once"),
    # boxes
    Metric("areal_boxes_live", Type.GAUGE, "Boxes that run or are being started"),
    Metric("areal_boxes_capacity", Type.GAUGE, "Boxes at once"),
    Metric("areal_boxes_ended_total", Type.COUNTER, "Boxes that ended, by cause", ("cause",)),
    # sandbox, in the reward service
    Metric("areal_sandbox_slots", Type.GAUGE, "Judgements that may run at once"),
    Metric("areal_sandbox_running", Type.GAUGE, "Judgements that run"),
    Metric("areal_sandbox_queue_depth", Type.GAUGE, "Requests that wait for a slot", ("priority",)),
    Metric("areal_sandbox_queue_age_seconds", Type.GAUGE, "How long the oldest waiting request waits", ("priority",)),
    Metric("areal_sandbox_wait_seconds", Type.HISTOGRAM, "From a request to its slot", ("priority",), _SHORT_SECONDS),
    Metric(
        "areal_sandbox_phase_seconds",
        Type.HISTOGRAM,
        "Time of a judgement by phase: setup, compile, run, judge",
        ("phase",),
        _SHORT_SECONDS,
    ),
    Metric(
        "areal_sandbox_judgements_total",
        Type.COUNTER,
        "Judgements, remembered ones too, by status",
        ("status", "language", "tier"),
    ),
    Metric("areal_sandbox_executions_total", Type.COUNTER, "Executions by status", ("status", "language", "tier")),
    Metric("areal_sandbox_retries_total", Type.COUNTER, "Judgements tried again because the sandbox failed"),
    Metric("areal_sandbox_flags_total", Type.COUNTER, "Judged programs with a sign of cheating", ("flag",)),
    Metric("areal_sandbox_runs_total", Type.COUNTER, "Processes that ran a program"),
    Metric("areal_sandbox_kills_total", Type.COUNTER, "Runs that were killed, by what they exceeded", ("reason",)),
    Metric("areal_sandbox_zygote_restarts_total", Type.COUNTER, "Zygotes replaced"),
    Metric("areal_sandbox_spare_misses_total", Type.COUNTER, "Runs that found no prepared cell"),
    Metric("areal_sandbox_memory_peak_bytes", Type.GAUGE, "Most memory that a judged program took lately"),
    Metric("areal_sandbox_suites_bytes", Type.GAUGE, "Bytes of uploaded suites"),
    Metric("areal_sandbox_tier", Type.GAUGE, "How much stands between a program and the machine: 0 to 4"),
    Metric("areal_sandbox_ready", Type.GAUGE, "1 while the self-test holds"),
    # worker
    Metric("areal_worker_episodes_total", Type.COUNTER, "Episodes by outcome", ("outcome",)),
    Metric("areal_worker_groups_held", Type.GAUGE, "Groups that this worker holds"),
    # gateway
    Metric("areal_gateway_calls_total", Type.COUNTER, "Calls of agents by what became of them", ("outcome",)),
    Metric("areal_gateway_calls_running", Type.GAUGE, "Calls whose answer isn't whole yet"),
    Metric("areal_gateway_resent_total", Type.COUNTER, "Calls handed on again after their worker's stream ended"),
    Metric("areal_gateway_workers", Type.GAUGE, "Workers that are connected"),
    Metric("areal_gateway_ignored_total", Type.COUNTER, "Fields of agents' requests that had no effect", ("field",)),
    Metric(
        "areal_gateway_forks_total",
        Type.COUNTER,
        "Calls with a history that began a sequence of their own: another system message, other tools, another history",
        ("why",),
    ),
    # recording
    Metric("areal_record_bytes_total", Type.COUNTER, "Bytes written to the recording"),
    Metric(
        "areal_record_dropped_total",
        Type.COUNTER,
        "Records that were not kept: over the budget of a step, a full queue, a disk that failed, a bug",
        ("why",),
    ),
    # checkpoint
    Metric("areal_checkpoint_last_success_timestamp_seconds", Type.GAUGE, "When the newest checkpoint was written"),
    Metric("areal_checkpoint_duration_seconds", Type.HISTOGRAM, "Time of a checkpoint", (), _SECONDS),
    Metric("areal_checkpoint_bytes", Type.GAUGE, "Bytes of the newest checkpoint"),
]


def _operator(
    name: str, kind: Type, text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(f"areal_operator_{name}", kind, text, labels, buckets, Scope.OPERATOR)


def _job(name: str, text: str, labels: tuple[str, ...] = (), kind: Type = Type.GAUGE) -> Metric:
    return Metric(f"areal_rljob_{name}", kind, text, labels, (), Scope.JOB)


_ALL += [
    _operator("info", Type.GAUGE, "1, with the version", ("version",)),
    _operator("leader", Type.GAUGE, "1 in the process that holds the lease, 0 in others"),
    _operator("reconcile_total", Type.COUNTER, "Reconciles by result: ok, requeue, conflict, error", ("result",)),
    _operator("reconcile_duration_seconds", Type.HISTOGRAM, "Time of a reconcile", (), _SECONDS),
    _operator("queue_depth", Type.GAUGE, "Jobs that are due and wait for a worker"),
    _operator("queue_latency_seconds", Type.HISTOGRAM, "From being due to being worked on", (), _SECONDS),
    _operator("watch_last_event_timestamp_seconds", Type.GAUGE, "When a watch last heard anything", ("resource",)),
    _operator("watch_restarts_total", Type.COUNTER, "Watches begun anew, by cause", ("resource", "cause")),
    _operator("cached_objects", Type.GAUGE, "Objects in memory", ("resource",)),
    _operator("api_requests_total", Type.COUNTER, "Requests by method and HTTP status, 0 for none", ("method", "code")),
    _operator("api_waiting", Type.GAUGE, "Requests that wait for the rate limit"),
    _operator("events_dropped_total", Type.COUNTER, "Events over the budget, or refused"),
    _operator("loop_lag_seconds", Type.GAUGE, "How late the event loop is"),
    _job("info", "1, with what a job was asked to be", ("algorithm", "runtime", "managed_by")),
    _job("status", "1 for the summary that a job has now", ("summary",)),
    _job("condition", "1 for the status that a condition has now, 0 for the others", ("type", "status")),
    _job("condition_reason", "1 for the reason that a condition has now", ("type", "reason")),
    _job("volume_info", "1 for each volume claim that a job writes to", ("persistentvolumeclaim",)),
    _job("progress_step", "Step that the trainer is at"),
    _job("max_steps", "Steps that the job is to make"),
    _job("policy_version", "Newest policy version"),
    _job("oldest_served_version", "Oldest policy version that a generation server samples from"),
    _job("max_staleness", "Versions that a trained token may be behind"),
    _job("reward", "Mean reward of the last batch"),
    _job("groups_trained", "Prompt groups trained"),
    _job("epoch", "Incarnation of the trainer's gang"),
    _job("restarts_total", "Restarts of the trainer, all that were counted and all that were not", (), Type.COUNTER),
    _job("role_desired", "Pods that a role should have", ("role",)),
    _job("role_ready", "Pods of a role that are ready", ("role",)),
    _job("gpus", "GPUs that pods of the job with a node ask for"),
    _job("gpu_seconds_total", "GPUs times seconds that the job held them", (), Type.COUNTER),
    _job("checkpoint_step", "Step of the newest checkpoint"),
    _job("checkpoint_interval_steps", "Steps after which a checkpoint is due"),
    _job("created_timestamp_seconds", "When the job was created"),
    _job("start_timestamp_seconds", "When the job was accepted"),
    _job("completion_timestamp_seconds", "When the job came to its end"),
    _job("last_report_timestamp_seconds", "When a step of the job that was made was last reported"),
    _job("stall_timeout_seconds", "Seconds without a step after which the failure policy decides"),
    _job(
        "loss_timestamp_seconds", "When a role was last lost, by whose fault, on which node", ("role", "owner", "node")
    ),
]

CATALOG: dict[str, Metric] = {metric.name: metric for metric in _ALL}
