"""The `engine` argument of a workflow: the user's side of one episode.

Lives on the user's event loop. Carries every call to the worker's own loop and back, and fills in what the workflow
need not know: sampling, the token budget, seeds by turn, the group's row and prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import orjson

from areal.clients.boxes import SCORING_S, Box, BoxClient, BoxLimits
from areal.errors import ArealError, ConfigError, DataError
from areal.gateway.core import Access
from areal.observe.waits import WaitRegistry
from areal.rollout.worker.user_loop import Mailbox, UserLoop
from areal.values.generation import GenerationRequest, GenerationResult, Ids, Sampling, as_ids
from areal.values.images import Image
from areal.workflow.base import Outcome, Prompt, episode_of
from areal.workflow.branches import SessionEnding
from areal.workflow.episode import Episode, RejectedError
from areal.workflow.rlvr import prompt_of
from areal.workflow.tokenizer import Tokenizer


@dataclass(frozen=True)
class ScoreCall:
    """What is to be scored."""

    prompt: str
    completion: str
    prompt_ids: Ids
    completion_ids: Ids
    row_json: bytes


class Backend(Protocol):
    """The worker's side of an episode; called on the worker's loop. `reply` is called once, there."""

    def generate(
        self, turn: int, ids: Ids, sampling: Sampling, reply: Reply, *, images: tuple[Image, ...] = ()
    ) -> None: ...

    def score(self, call: ScoreCall, reply: Reply) -> None: ...

    def open_session(self, reply: Reply) -> None: ...

    def session_over(self, reply: Reply) -> None: ...

    def end_session(self, reply: Reply) -> None: ...

    def withdraw(self, reply: Reply) -> None: ...


class Reply:
    """Brings one answer from the worker's loop to the user's."""

    def __init__(self, user: Mailbox, future: asyncio.Future[Any]) -> None:
        self._user = user
        self._future = future

    def __call__(self, outcome: Any) -> None:
        """Deliver a value, or an ArealError to raise."""
        self._user.post(self._settle, outcome)

    def _settle(self, outcome: Any) -> None:
        if self._future.done():
            return
        if isinstance(outcome, ArealError):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)


class EpisodeSession:
    """See `areal.workflow.base.AgentSession`."""

    def __init__(
        self, access: Access, over: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[SessionEnding]]
    ) -> None:
        self.base_url = access.base_url
        self.api_key = access.api_key
        self._over = over
        self._end = end
        self._finished: SessionEnding | None = None

    async def over(self) -> None:
        """See `AgentSession.over`."""
        await self._over()

    async def episode(self, reward: float | Outcome | None = None) -> Episode:
        """See `AgentSession.episode`."""
        return episode_of(await self.end(), reward)

    async def end(self) -> SessionEnding:
        """End it; a second time the same."""
        if self._finished is None:
            self._finished = await self._end()
        return self._finished


class GroupRow:
    """A group's dataset row, parsed and tokenised once for all its episodes. Used on the user's loop only."""

    def __init__(self, row_json: bytes, tokenizer: Tokenizer, chat_template: bool | None) -> None:
        self.row_json = row_json
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._row: dict[str, Any] | None = None
        self._prompt: Prompt | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The row; not to be changed."""
        if self._row is None:
            self._row = self._parse()
        return self._row

    def _parse(self) -> dict[str, Any]:
        loaded = orjson.loads(self.row_json)
        if not isinstance(loaded, dict):
            raise DataError(f"a dataset row is a {type(loaded).__name__}", fix="prepare the dataset again")
        return loaded

    def copy(self) -> dict[str, Any]:
        """A row for one episode, which may do with it what it likes."""
        return self._parse()

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """The row's prompt, tokenised once while the row is unchanged."""
        if row != self.row:
            return prompt_of(row, self._tokenizer, chat_template=self._chat_template)
        if self._prompt is None:
            self._prompt = prompt_of(self.row, self._tokenizer, chat_template=self._chat_template)
        return self._prompt

    def json_of(self, row: Mapping[str, Any]) -> bytes:
        """The row as JSON; the stored bytes while it is unchanged."""
        return self.row_json if row == self.row else orjson.dumps(dict(row))


class EpisodeEngine:
    """See `areal.workflow.Engine`."""

    def __init__(
        self,
        user: UserLoop,
        worker: Mailbox,
        backend: Backend,
        group_row: GroupRow,
        *,
        tokenizer: Tokenizer,
        sampling: Sampling,
        max_sample_tokens: int,
        greedy: bool,
        boxes: EpisodeBoxes | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.sampling = sampling.greedy() if greedy else sampling
        self._user = user
        self._worker = worker
        self._backend = backend
        self._group_row = group_row
        self._max_sample_tokens = max_sample_tokens
        self._greedy = greedy
        self._boxes = boxes
        self._turn = 0
        self._images: tuple[Image, ...] = ()  # of the prompt

    def prompt(self, row: Mapping[str, Any]) -> Prompt:
        """See `Engine.prompt`."""
        made = self._group_row.prompt(row)
        self._images = made.images
        return made

    async def agenerate(self, request: GenerationRequest) -> GenerationResult:
        """See `Engine.agenerate`. The sample's token budget bounds every answer; with none left it is empty.

        Raises RejectedError when not even the first answer has room.
        """
        ids = as_ids(request.input_ids).copy()  # what was sent is compared with what comes back
        wanted = request.sampling or self.sampling
        room = max(0, min(wanted.max_new_tokens, self._max_sample_tokens - len(ids)))
        if not room and not self._turn:
            raise RejectedError(
                f"a prompt of {len(ids)} tokens leaves no room for an answer: maxSampleTokens is "
                f"{self._max_sample_tokens}",
                fix="raise rollout.maxSampleTokens, or shorten the row",
            )
        sampling = replace(wanted, max_new_tokens=room) if room != wanted.max_new_tokens else wanted
        if self._greedy and sampling.temperature:
            sampling = sampling.greedy()
        turn = self._turn
        self._turn += 1
        shape, images = self.tokenizer.image_shape, request.images
        if not images and shape is not None and (ids == shape.token).any():
            images = self._images
        asked = partial(self._backend.generate, images=images) if images else self._backend.generate
        result: GenerationResult = await self._ask(asked, turn, ids, sampling)
        return result

    async def score(
        self,
        *,
        prompt: str,
        completion: str,
        prompt_ids: Sequence[int] | Ids,
        completion_ids: Sequence[int] | Ids,
        row: Mapping[str, Any],
    ) -> float:
        """See `Engine.score`."""
        row_json = self._group_row.json_of(row)
        call = ScoreCall(prompt, completion, as_ids(prompt_ids), as_ids(completion_ids), row_json)
        value: float = await self._ask(self._backend.score, call)
        return value

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[EpisodeSession]:
        """See `Engine.session`."""
        access = await self._ask(self._backend.open_session)
        opened = EpisodeSession(
            access, partial(self._ask, self._backend.session_over), partial(self._ask, self._backend.end_session)
        )
        try:
            yield opened
        finally:
            await opened.end()

    def box(
        self,
        *,
        work_s: float,
        scoring_s: float = SCORING_S,
        files: Mapping[str, bytes] | None = None,
        limits: BoxLimits | None = None,
        name: str = "",
    ) -> AbstractAsyncContextManager[Box]:
        """See `Engine.box`."""
        if self._boxes is None:
            raise ConfigError(
                "the workflow asks for a box, and the job has none",
                fix="set rollout.boxes.maxConcurrent to how many boxes there may be at once",
            )
        client = self._boxes.client()
        return client.box(work_s=work_s, scoring_s=scoring_s, files=files, limits=limits, name=name)

    async def _ask(self, method: Any, *args: Any) -> Any:
        future = self._user.loop.create_future()
        reply = Reply(self._user.mailbox, future)
        self._worker.post(method, *args, reply)
        try:
            return await future
        except asyncio.CancelledError:
            self._worker.post(self._backend.withdraw, reply)
            raise


class EpisodeBoxes:
    """Where the episodes of a worker have their boxes. Called on loops of user code."""

    def __init__(self, address: str, token: str, waits: WaitRegistry) -> None:
        self._address = address
        self._token = token
        self._waits = waits
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, BoxClient] = WeakKeyDictionary()

    def client(self) -> BoxClient:
        """The client of the calling loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            self._clients[loop] = BoxClient(self._address, self._token, waits=self._waits)
        return self._clients[loop]

    async def close(self) -> None:
        """Lets go of the service, for the calling loop: what is still open there ends after a grace."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
