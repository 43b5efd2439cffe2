"""The worker's side of one episode: its generations, its scores, and what they leave behind.

Lives on the worker's loop. Remembers every answer as it was streamed, which the episode is compared with, and the
newest generation, so that an episode whose time is over can end as it is.
"""

import asyncio
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import xxhash

from areal.clients.generation import ActiveGeneration, Ask, GenerationClient
from areal.clients.reward import RewardClient, Score
from areal.errors import ArealError, ConfigError, DataError, InfraError
from areal.rollout.worker.episode_engine import Reply, ScoreCall
from areal.rollout.worker.kept_answers import DrawnAnswer, EarlierTry
from areal.rollout.worker.sessions import Pending, Sessions
from areal.v1 import common_pb2 as common
from areal.v1 import record_pb2 as record
from areal.v1 import reward_pb2 as wire
from areal.values.generation import GenerationResult, Ids, OnTokens, Sampling
from areal.values.images import Image, greyed
from areal.workflow.branches import SessionEnding
from areal.workflow.episode import Episode, Sequence
from areal.workflow.streamed import StreamedAnswer, other_sampling

# Seeds of samples: what a sample draws depends on the job's seed and on its own name, on nothing else.

_POSITIVE = (1 << 63) - 1  # engines keep seeds in signed 64-bit tensors


def sample_seed(job_seed: int, group: int, index: int, turn: int) -> int:
    """The seed of generation `turn` (0-based, in order of calls) of sample (group, index); 63 bits."""
    packed = struct.pack("<4q", job_seed, group, index, turn)
    return int(xxhash.xxh3_64_intdigest(packed)) & _POSITIVE


MAX_MOMENTS = 512  # of one episode; a longer one keeps its first
DEADLINE = "deadline"  # finish reason of a sequence whose group ran out of time


@dataclass(frozen=True)
class EpisodeSettings:
    """What all episodes of a job share."""

    seed: int
    sampling: Sampling
    max_sample_tokens: int
    chat_template: bool | None
    verifier: str
    unscored: bool = False  # rewards count for nothing: without a verifier every answer has 0
    evaluation_sampling: Sampling | None = None  # of an evaluation's sampled answers; None: as in training


class EpisodeRun:
    """See `episode_engine.Backend`."""

    def __init__(
        self,
        client: GenerationClient,
        reward: RewardClient | None,
        settings: EpisodeSettings,
        *,
        group: int,
        index: int,
        attempt: int,
        affinity: str,
        floor: int,
        greedy: bool,
        evaluates: bool = False,
        blind: bool = False,
        sessions: Sessions,
        earlier: EarlierTry | None = None,
    ) -> None:
        self.floor = floor
        self.began = time.time()
        self.verdict: common.Verdict | None = None
        self._client = client
        self._reward = reward
        self._settings = settings
        self._group = group
        self._index = index
        self._earlier = earlier or EarlierTry(attempt, ())
        # What is sampled beside answers of an earlier try belongs to that try: a sample's tokens are of one attempt.
        self._key = common.SampleKey(group=group, index=index, attempt=self._earlier.attempt)
        self._over = self._earlier.sampled  # tokens of generations that are over
        self.moved = 0  # tokens made before their answer went on elsewhere
        self._affinity = affinity
        self._greedy = greedy
        self._evaluates = evaluates
        self._blind = blind
        self._withheld = 0  # images, and answers of tools
        self._generations: dict[Reply | Pending, ActiveGeneration] = {}
        self._scores: dict[Reply, asyncio.Future[Score]] = {}
        self.answers: list[StreamedAnswer] = []
        self._drawn: list[DrawnAnswer] = []
        self.moments: list[record.Moment] = []  # what its time went to, as it ended
        self._newest: ActiveGeneration | None = None
        self._sessions = sessions
        self._session = ""  # the name of its open one
        self._scored = False  # its agent has ended it with a reward
        self._watcher: Reply | None = None  # waits for that
        self._closed = False

    @property
    def saw_everything(self) -> bool:
        """True of a blind episode that was like any other: nothing that it was to do without came up."""
        return self._blind and not self._withheld

    @property
    def waiting(self) -> bool:
        """Whether the episode waits for us rather than we for it."""
        return bool(self._generations or self._scores)

    @property
    def has_tokens(self) -> bool:
        """Whether any token of it was sampled."""
        return any(answer.result.spans for answer in self.answers) or any(
            generation.accumulator.tokens for generation in self._generations.values()
        )

    @property
    def sampled(self) -> int:
        """Tokens that it was given so far, those of an earlier try's answers too."""
        return self._over + sum(generation.accumulator.tokens for generation in self._generations.values())

    def _count(self, generation: ActiveGeneration) -> None:
        self._over += generation.accumulator.tokens
        self.moved += generation.accumulator.moved

    @property
    def drawn(self) -> EarlierTry:
        """Every whole answer of this try and of those before it, for the try after this one."""
        return self._earlier.with_answers(self._drawn)

    def partial(self) -> Episode | None:
        """The newest generation as it is, none of it trained; None before the first token."""
        if self._newest is None or not self._newest.accumulator.tokens:
            return None
        ask, result = self._newest.ask, self._newest.accumulator.result(DEADLINE)
        return Episode([replace(Sequence.of(ask.prompt_ids, result, 0.0).masked(), images=ask.images)])

    def generate(
        self,
        turn: int,
        ids: Ids,
        sampling: Sampling,
        reply: Reply | Pending,
        draw: int | None = None,
        on_tokens: OnTokens | None = None,
        images: tuple[Image, ...] = (),
    ) -> None:
        """Begin a generation. What it draws depends on `draw`, or on its turn; `on_tokens` is told tokens."""
        if self._closed:
            return
        if self._blind:
            self._withheld += len(images)
            images = tuple(map(greyed, images))
        seed = (
            None
            if self._greedy
            else sample_seed(self._settings.seed, self._group, self._index, turn if draw is None else draw)
        )
        if seed is not None and not self._evaluates:
            kept = self._earlier.take(seed, ids, sampling, self.floor, images)
            if kept is not None:
                self._take_up(turn, kept, reply, on_tokens)
                return
        ask = Ask(
            prompt_ids=ids,
            sampling=sampling,
            affinity=self._affinity,
            floor=self.floor,
            seed=seed,
            key=None if self._evaluates else self._key,
            images=images,
        )

        began = time.time()

        def done(generation: ActiveGeneration) -> None:
            self._generations.pop(reply, None)
            self._count(generation)
            self._ended("generate", began, turn)
            outcome = generation.outcome
            if isinstance(outcome, GenerationResult):
                kept = outcome.copied()
                self._answered(turn, ids, sampling, kept, images)
                if seed is not None:
                    self._drawn.append(DrawnAnswer(seed, ids, sampling, kept, images))
            reply(outcome)

        try:
            generation = self._client.open(ask, done, _teller(on_tokens) if on_tokens is not None else None)
        except ArealError as error:
            reply(error)
            return
        self._newest = generation
        if generation.outcome is None:
            self._generations[reply] = generation

    def _answered(
        self, turn: int, ids: Ids, sampling: Sampling, result: GenerationResult, images: tuple[Image, ...]
    ) -> None:
        other = "" if self._evaluates else other_sampling(sampling, self._settings.sampling)
        self.answers.append(StreamedAnswer(turn, ids, result, other, images))

    def _take_up(self, turn: int, kept: DrawnAnswer, reply: Reply | Pending, on_tokens: OnTokens | None) -> None:
        """Give an answer that an earlier try was given."""
        self._drawn.append(kept)
        result = kept.result.copied()
        self._answered(turn, kept.input_ids, kept.sampling, result, kept.images)
        if on_tokens is not None:
            on_tokens(result.output_ids, result.logprobs)
        reply(result.copied())

    def score(self, call: ScoreCall, reply: Reply) -> None:
        """Begin to score."""
        if self._closed:
            return
        if self._reward is None and self._settings.unscored:
            reply(0.0)
            return
        if self._reward is None:
            reply(ConfigError("this job has no verifier", fix="name reward.verifier, or define reward() in the recipe"))
            return
        item = wire.ScoreItem(
            verifier=self._settings.verifier,
            key=self._key,
            prompt=call.prompt,
            completion=call.completion,
            prompt_ids=call.prompt_ids.tobytes(),
            completion_ids=call.completion_ids.tobytes(),
            row_json=call.row_json,
        )
        future = self._scores[reply] = self._reward.submit(item)

        began = time.time()

        def done(scored: asyncio.Future[Score]) -> None:
            self._scores.pop(reply, None)
            self._ended("score", began, len(self.answers))
            if scored.cancelled():
                reply(InfraError("scoring was cancelled"))
            elif (error := scored.exception()) is not None:
                reply(error if isinstance(error, ArealError) else InfraError(f"scoring failed: {error}"))
            else:
                self.verdict = scored.result().verdict
                reply(scored.result().value)

        future.add_done_callback(done)

    def open_session(self, reply: Reply) -> None:
        """Give the episode a base URL of its own."""
        if self._closed:
            return
        sampling = self._settings.sampling.greedy() if self._greedy else self._settings.sampling
        if sampling.top_p != 1 or sampling.top_k:
            reply(ConfigError("agents sample from the whole distribution", fix="remove rollout.sampling.topP and topK"))
            return
        if self._session:
            reply(DataError("the episode has a session already", fix="give all its agents the same base URL"))
            return
        self._scored = False
        name = f"{self._affinity}.{self._index}"
        try:
            self._session, access = self._sessions.open(name, self, sampling, self._session_scored, blind=self._blind)
        except ArealError as error:
            reply(error)
            return
        reply(access)

    def session_over(self, reply: Reply) -> None:
        """Answer once its agent has ended it with a reward."""
        if self._scored:
            reply(None)
        else:
            self._watcher = reply

    def _session_scored(self) -> None:
        self._scored = True
        if self._watcher is not None:
            self._watcher(None)
            self._watcher = None

    def end_session(self, reply: Reply) -> None:
        """End it; the answer is what was sampled and the reward that was posted."""
        reply(self._end_session("its agent has ended it"))

    def _end_session(self, reason: str) -> SessionEnding:
        name, self._session = self._session, ""
        ending = self._sessions.close(name, reason) if name else SessionEnding()
        self._withheld += ending.withheld
        return ending

    def _ended(self, what: str, began: float, turn: int) -> None:
        if len(self.moments) < MAX_MOMENTS:
            self.moments.append(record.Moment(what=what, turn=turn, began=began, ended=time.time()))

    def withdraw(self, reply: Reply | Pending) -> None:
        """Nobody waits for this answer any more."""
        generation = self._generations.pop(reply, None)
        if generation is not None:
            self._count(generation)
            generation.cancel()
        if isinstance(reply, Pending):
            return
        if reply is self._watcher:
            self._watcher = None
        future = self._scores.pop(reply, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """The episode is over: cancel what it left running."""
        self._closed = True
        self._newest = None  # its callback holds this run
        self._end_session("nobody waits for this sample any more")
        for reply in [*self._generations, *self._scores]:
            self.withdraw(reply)


def _teller(on_tokens: OnTokens) -> Callable[[ActiveGeneration], None]:
    """Tells each token of a generation once."""
    told = 0

    def more(generation: ActiveGeneration) -> None:
        nonlocal told
        ids, logprobs = generation.accumulator.since(told)
        told += len(ids)
        on_tokens(ids, logprobs)

    return more
