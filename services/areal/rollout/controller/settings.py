"""Settings of a controller as plain values, and the run's position under them: how far its trainer is.

Hot fields (`max_steps`, `max_staleness`, `ahead`, `max_concurrent`) change during a run; the rest is fixed at start.
The position is one value that all parts of the core read: `TrainerDesk` writes fence and step, `Book` what is chosen,
`Controller` the settings.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Counts are prompt groups unless the name says otherwise; times are seconds."""

    group_size: int  # samples a group
    batch_groups: int  # groups a training step
    max_steps: int  # hot
    max_staleness: int  # no older token is trained; hot
    max_concurrent: int  # groups being generated at once, hot
    group_deadline_s: float
    ahead: int | None = None  # batches that generation may be ahead of the servers' version; hot
    window_groups: int = 0  # so many change places to have answers of alike lengths together; 0: none do
    admission_order: bool = False  # batches are trained in the order in which their groups were admitted
    filter_zero_variance: bool = False
    max_filtered_per_step: int = 0  # 0 never stalls
    max_bad_row_share: float = 1.0  # of the newest groups; 1 never stalls
    bytes_per_group: int = 1
    budget_bytes: int = 1 << 40
    publish_interval: int = 1  # trainer steps between published versions
    evaluation_interval: int = 0  # versions; 0 is no evaluation
    evaluation_rows: int = 0
    evaluation_concurrent: int = 64  # rows in work at once
    evaluation_at_start: bool = True
    evaluation_failed_are_wrong: bool = True  # else a row without a score is in no mean
    evaluation_samples: int = 0  # sampled answers to each row, beside the greedy one
    evaluation_pass_at: tuple[int, ...] = ()
    evaluation_sets: tuple[str, ...] = ()  # the set of each row, when rows have one
    evaluation_blind: tuple[int, ...] = ()  # rows that are answered without images and answers of tools, too
    evaluation_pins: bool = False  # servers keep a version until its evaluation has ended
    shared_cards: bool = False  # servers and trainer have the same cards, by turns
    pass_score: float | None = None  # the reward from which a sample passes; None where nobody counts
    infra_tries: int = 10  # failures of one group before it may be given up
    infra_patience_s: float = 120.0  # and only when they went on for this long: a restart of any role is far shorter
    adopt_grace_s: float = 2.0  # after our restart, time for workers to come back with the groups they hold
    resend_grace_s: float = 2.0  # after the ledger lost data, time for workers to send their samples again

    @property
    def lead(self) -> int:
        """`ahead`, as it is or by default: half of `max_staleness`, rounded up; all of it in admission order.

        By default it is enough for the interval of publishing, as far as `max_staleness` allows.
        """
        if self.admission_order:
            return self.max_staleness
        if self.ahead is not None:
            return self.ahead
        return min(self.max_staleness, max(-(-self.max_staleness // 2), self.publish_interval - 1))

    @property
    def evaluates(self) -> bool:
        """Whether this job has evaluations at all."""
        return self.evaluation_interval > 0 and self.evaluation_rows > 0


MOST_STEPS = 10**9  # of the job file's fields, which a call must not go beyond
MOST_STALENESS = 1000
MOST_SHARED_STALENESS = 1  # generation and training never overlap on shared cards: more would only be older
MOST_CONCURRENT = 1 << 20
CHECKPOINT_SHARE = 0.8  # of the byte budget: enough left for the groups that a step in progress still admits
RETRY_FIRST_S = 0.25  # an infrastructure fault is often over at once
RETRY_LAST_S = 15.0  # the longest pause between two tries


def retry_pause_s(tries: int) -> float:
    """Exponential pause before try `tries + 1`."""
    return float(min(RETRY_LAST_S, RETRY_FIRST_S * 2 ** min(tries, 10)))


@dataclass(slots=True)
class TrainPosition:
    """`step` is the version that the batches make which the trainer took; `chosen` the number of batches chosen."""

    settings: ControllerSettings
    fence: int = 0  # of the trainer that attached last; 0 is none
    step: int = 0
    chosen: int = 0

    @property
    def max_steps(self) -> int:
        """The run's last version. Below what is chosen it means just that: a batch, once chosen, is trained."""
        return max(self.settings.max_steps, self.chosen)
