"""Runs episodes of the user's workflow, many at once, and says how each ended.

Owns the user's event loop and the guard over it: an exception, a None, a hang or a blocking call costs the episode
that did it. When the loop itself is held, the culprit and its siblings, which run the same row, are charged with a
hang, the loop is replaced, and the other episodes on it begin anew. Lives on the worker's loop; knows no leases.
"""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from areal.clients.generation import GenerationClient
from areal.clients.reward import RewardClient
from areal.errors import ArealError, BugError, DataError, InfraError
from areal.rollout.contract.values import BLIND, NOTHING_WITHHELD, FailureKind
from areal.rollout.worker.episode_engine import EpisodeBoxes, EpisodeEngine, GroupRow
from areal.rollout.worker.episode_run import EpisodeRun, EpisodeSettings
from areal.rollout.worker.kept_answers import KeptAnswers
from areal.rollout.worker.sessions import Sessions
from areal.rollout.worker.user_loop import Mailbox, UserLoop, stack_of
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal.workflow.base import RolloutWorkflow
from areal.workflow.episode import Episode, RejectedError, check_episode, check_images
from areal.workflow.streamed import check_streamed
from areal.workflow.tokenizer import Tokenizer

log = logging.getLogger(__name__)

TRACEBACK_CHARS = 8_000
BLOCKED_S = 2.0  # a loop that did not turn for so long has one guilty episode at most


@dataclass(frozen=True, slots=True)
class Key:
    """An episode's name. An evaluation's `group` is its row."""

    group: int
    index: int
    evaluation: str = ""

    @property
    def affinity(self) -> str:
        """Affinity key that its generations share with those of its group."""
        return f"{self.evaluation}/{self.group}" if self.evaluation else str(self.group)


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode ended: with an episode, or a failure of `kind`."""

    episode: Episode | None = None
    verdict: common.Verdict | None = None
    kind: FailureKind = FailureKind.NONE
    message: str = ""
    fix: str = ""
    traceback: str = ""
    moments: Sequence[record.Moment] = ()  # what its time went to
    began: float = 0.0  # unix seconds
    sampled: int = 0  # tokens that it was given
    moved: int = 0  # of these, those made before their answer went on elsewhere


@dataclass(eq=False)
class _Slot:
    """One running episode."""

    key: Key
    run: EpisodeRun
    user: UserLoop
    again: Callable[[], None]  # begin it anew
    task: asyncio.Task[Any] | None = None
    ended: bool = field(default=False)


class EpisodeRunner:
    """`make_workflow` builds the user's workflow, once for each user loop. `on_end` is called on the worker's loop."""

    def __init__(
        self,
        client: GenerationClient,
        reward: RewardClient | None,
        tokenizer: Tokenizer,
        settings: EpisodeSettings,
        make_workflow: Callable[[], RolloutWorkflow],
        on_end: Callable[[Key, EpisodeResult], None],
        *,
        stall_s: float,
        sessions: Sessions,
        boxes: EpisodeBoxes | None = None,
    ) -> None:
        self._sessions = sessions
        self._boxes = boxes
        self._client = client
        self._reward = reward
        self._tokenizer = tokenizer
        self._settings = settings
        self._make_workflow = make_workflow
        self._on_end = on_end
        self._stall_s = stall_s
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._workflow = make_workflow()
        self._user = UserLoop()
        self._slots: dict[Key, _Slot] = {}
        self._rows: dict[tuple[str, int], tuple[GroupRow, set[Key]]] = {}
        self._kept = KeptAnswers()

    @property
    def running(self) -> int:
        """Episodes under way."""
        return len(self._slots)

    @property
    def tokens_in_work(self) -> int:
        """Tokens of episodes under way, and of answers kept for the next try."""
        return sum(slot.run.sampled for slot in self._slots.values()) + self._kept.sampled

    def start(self, key: Key, row_json: bytes, *, floor: int, attempt: int = 0) -> None:
        """Begin an episode; `on_end` tells its end, unless it is stopped."""
        if key in self._slots:
            self.stop(key)
        greedy, blind = bool(key.evaluation) and key.index in (0, BLIND), bool(key.evaluation) and key.index == BLIND
        settings = self._settings
        if key.evaluation:
            settings = replace(settings, sampling=settings.evaluation_sampling or settings.sampling)
        row = self._row(key, row_json)
        earlier = None if key.evaluation else self._kept.take(key)
        run = EpisodeRun(
            self._client,
            self._reward,
            settings,
            group=key.group,
            index=key.index,
            attempt=attempt,
            affinity=key.affinity,
            floor=floor,
            greedy=greedy,
            evaluates=bool(key.evaluation),
            blind=blind,
            sessions=self._sessions,
            earlier=earlier,
        )

        def again() -> None:
            self.start(key, row_json, floor=run.floor, attempt=attempt)

        slot = self._slots[key] = _Slot(key, run, self._user, again)
        engine = EpisodeEngine(
            self._user,
            self._mailbox,
            run,
            row,
            tokenizer=self._tokenizer,
            sampling=settings.sampling,
            max_sample_tokens=settings.max_sample_tokens,
            greedy=greedy,
            boxes=self._boxes,
        )
        self._user.mailbox.post(self._launch, slot, self._workflow, engine, row)

    def stop(self, key: Key) -> int:
        """End an episode without telling anybody; returns the tokens that it was given."""
        if (slot := self._remove(key)) is None:
            return 0
        self._cancel(slot)
        return slot.run.sampled

    def stop_group(self, group: int) -> int:
        """End all episodes of a prompt group; returns the tokens that they were given."""
        return sum(self.stop(slot.key) for slot in self._of_group(group))

    def has_tokens(self, group: int) -> bool:
        """Whether any token was sampled by a running episode of the group."""
        return any(slot.run.has_tokens for slot in self._of_group(group))

    def _of_group(self, group: int) -> list[_Slot]:
        """The running episodes of a prompt group."""
        _, keys = self._rows.get(("", group), (None, ()))
        return [self._slots[key] for key in keys]

    def expire(self, key: Key, *, keep_partial: bool) -> None:
        """An episode's time is over. Waiting for the engine it ends as it is; otherwise the user's code hangs."""
        slot = self._slots.get(key)
        if slot is None:
            return
        blocked = time.monotonic() - slot.user.last_turn > BLOCKED_S
        if slot.run.waiting:
            partial = slot.run.partial() if keep_partial else None
            message = "its time was over while it waited for generation or scoring"
            ending = (
                EpisodeResult(episode=partial) if partial else EpisodeResult(kind=FailureKind.INFRA, message=message)
            )
        elif blocked and slot.user.current_owner() is not slot:
            ending = EpisodeResult(kind=FailureKind.INFRA, message="another episode blocked the event loop")
        else:
            task = slot.task  # the user's loop clears it at the episode's end
            where = slot.user.stack() if blocked else stack_of(task) if task else ""
            ending = _hang("the workflow did not end in its time", where)
        self._remove(key)
        self._keep_if_tried_again(slot, ending)
        self._cancel(slot)
        self._tell_end(slot, ending)

    def tick(self, now: float) -> None:
        """Look whether the user's loop turns; call it twice a second."""
        if now - self._user.last_turn > self._stall_s:
            self._replace_loop()
        self._user.ping()

    def close(self) -> None:
        """End everything."""
        for key in list(self._slots):
            self.stop(key)
        self._user.stop(self._close_user)

    # ---- on the user's loop

    async def _close_user(self) -> None:
        """What all episodes shared."""
        try:
            await self._workflow.aclose()
        finally:
            if self._boxes is not None:
                await self._boxes.close()

    def _launch(self, slot: _Slot, workflow: RolloutWorkflow, engine: EpisodeEngine, row: GroupRow) -> None:
        if not slot.ended:
            slot.task = slot.user.start(slot, self._episode(slot, workflow, engine, row))

    async def _episode(self, slot: _Slot, workflow: RolloutWorkflow, engine: EpisodeEngine, row: GroupRow) -> None:
        try:
            result = await workflow.arun_episode(engine, row.copy())
        except asyncio.CancelledError as error:
            if slot.ended:
                raise
            ending = _failure(error)  # the user's code cancelled itself
        except Exception as error:
            ending = _failure(error)
        else:
            ending = EpisodeResult(kind=FailureKind.REJECTED, message="the workflow returned None")
            if result is not None:
                ending = EpisodeResult(episode=result)
        finally:
            slot.task = None  # a task whose context names its slot must not be held by it
        self._mailbox.post(self._finished, slot, ending)

    # ---- on the worker's loop

    def _finished(self, slot: _Slot, ending: EpisodeResult) -> None:
        if self._slots.get(slot.key) is not slot:
            return
        self._remove(slot.key)
        self._keep_if_tried_again(slot, ending)
        slot.run.close()
        if ending.episode is not None:
            try:
                check_episode(ending.episode, vocab_size=self._tokenizer.vocab_size)
                episode = check_streamed(ending.episode, slot.run.answers)
                check_images(episode, self._tokenizer.image_shape)
                ending = replace(ending, episode=episode)
                if slot.run.saw_everything:
                    ending = EpisodeResult(kind=FailureKind.REJECTED, message=NOTHING_WITHHELD)
            except DataError as error:
                ending = _failure(error)
        self._tell_end(slot, replace(ending, verdict=slot.run.verdict if ending.episode is not None else None))

    def _tell_end(self, slot: _Slot, ending: EpisodeResult) -> None:
        run = slot.run
        ending = replace(ending, moments=run.moments, began=run.began, sampled=run.sampled, moved=run.moved)
        self._on_end(slot.key, ending)

    def _keep_if_tried_again(self, slot: _Slot, ending: EpisodeResult) -> None:
        if ending.kind is FailureKind.INFRA and not slot.key.evaluation:
            self._kept.keep(slot.key, slot.run.drawn)

    def _cancel(self, slot: _Slot) -> None:
        slot.run.close()

        def cancel() -> None:
            if slot.task is not None:
                slot.task.cancel()

        slot.user.mailbox.post(cancel)

    def _remove(self, key: Key) -> _Slot | None:
        slot = self._slots.pop(key, None)
        if slot is None:
            return None
        slot.ended = True
        name = (key.evaluation, key.group)
        keys = self._rows[name][1]
        keys.discard(key)
        if not keys:
            del self._rows[name]
            self._client.release(key.affinity)
        return slot

    def _row(self, key: Key, row_json: bytes) -> GroupRow:
        name = (key.evaluation, key.group)
        if name not in self._rows:
            self._rows[name] = (GroupRow(row_json, self._tokenizer, self._settings.chat_template), set())
        row, keys = self._rows[name]
        keys.add(key)
        return row

    def _replace_loop(self) -> None:
        old = self._user
        culprit, where = old.current_owner(), old.stack()
        log.error("user code held its event loop for %.0f s; a fresh one replaces it\n%s", self._stall_s, where)
        old.abandon()
        self._user = UserLoop()
        self._workflow = self._make_workflow()
        guilty = culprit.key if isinstance(culprit, _Slot) else None
        for slot in [slot for slot in self._slots.values() if slot.user is old]:
            self._remove(slot.key)
            slot.run.close()
            if slot is culprit:
                message = f"the workflow blocked the event loop for {self._stall_s:.0f} s"
                self._tell_end(slot, _hang(message, where))
            elif guilty is not None and (slot.key.group, slot.key.evaluation) == (guilty.group, guilty.evaluation):
                self._tell_end(slot, _hang("another sample of this row blocked the event loop", where))
            else:
                if not slot.key.evaluation:
                    self._kept.keep(slot.key, slot.run.drawn)
                slot.again()  # nobody's fault: it counts as no try


def _hang(message: str, where: str) -> EpisodeResult:
    fix = "await what takes long, with a timeout; run blocking calls by asyncio.to_thread"
    return EpisodeResult(kind=FailureKind.HANG, message=message, fix=fix, traceback=where[-TRACEBACK_CHARS:])


def _failure(error: BaseException) -> EpisodeResult:
    if isinstance(error, RejectedError):
        return EpisodeResult(kind=FailureKind.REJECTED, message=error.message, fix=error.fix)
    trace = "".join(traceback.format_exception(error))[-TRACEBACK_CHARS:]
    if isinstance(error, ArealError):
        kind = FailureKind.INFRA if isinstance(error, InfraError | BugError) else FailureKind.EXCEPTION
        return EpisodeResult(kind=kind, message=error.message, fix=error.fix, traceback=trace)
    return EpisodeResult(kind=FailureKind.EXCEPTION, message=f"{type(error).__name__}: {error}", traceback=trace)
