"""The routing client: owns a request from its first token to its last, whatever happens to servers.

It picks a server by `routing`, joins what is streamed by `accumulate`, and resubmits prompt and tokens so far when a
server dies, drains, swaps or falls behind. When no server is eligible a request waits for the fleet to change, by event
and under a name. Policies and log-probabilities come from servers only, never from what the client believes.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from cachetools import LRUCache

from areal.clients.generation import routing
from areal.clients.generation.accumulate import Accumulator, BadDelta, Next
from areal.clients.generation.fleet import Fleet
from areal.clients.generation.link import AgentLink
from areal.clients.generation.routing import WaitingRequests
from areal.errors import ArealError, DataError, InfraError
from areal.net.status import from_fault
from areal.observe.waits import LostService, WaitRegistry
from areal.v1 import common_pb2 as common
from areal.v1 import generation_pb2 as wire
from areal.values.generation import GenerationResult, Ids, Sampling, in_vocabulary
from areal.values.images import IMAGE, Image

log = logging.getLogger(__name__)

STALL_S = 120.0  # a stream with requests but without any event for so long: longer than any swap of weights
ABSENT_STALL_S = 5.0  # the same for a server that the controller no longer lists
SWEEP_S = 1.0
AFFINITIES = 8_192  # groups whose server is remembered, of owners that don't say which are over
ROUTED_AT_ONCE = 128  # requests sent before the event loop serves others: about ten milliseconds


@dataclass(frozen=True)
class Ask:
    """One generation, as its owner wants it."""

    prompt_ids: Ids
    sampling: Sampling
    affinity: str  # requests of one group share it, and its floor
    floor: int
    seed: int | None = None
    key: common.SampleKey | None = None  # whose answer it is; None in an evaluation
    images: tuple[Image, ...] = ()  # that placeholders of the prompt stand for


class ActiveGeneration:
    """A request under way. `on_done` is called once, on the client's event loop, when `outcome` is set."""

    def __init__(
        self,
        client: "GenerationClient",
        ask: Ask,
        accumulator: Accumulator,
        on_done: "Callable[[ActiveGeneration], None]",
        on_more: "Callable[[ActiveGeneration], None] | None" = None,
    ) -> None:
        self.ask = ask
        self.accumulator = accumulator
        self.outcome: GenerationResult | ArealError | None = None
        self.request_id = ""
        self.server_id = ""
        self.attempts = 0
        self._client = client
        self._on_done = on_done
        self._on_more = on_more

    def cancel(self) -> None:
        """End it now, without an outcome and without calling `on_done`."""
        self._client._cancel(self)

    def grown(self) -> None:
        """Its accumulator has more tokens."""
        if self._on_more is not None:
            self._on_more(self)

    def finish(self, outcome: GenerationResult | ArealError) -> None:
        """Set the outcome."""
        self.outcome = outcome
        self._on_done(self)

    def on_delta(self, request_id: str, delta: wire.GenerateDelta) -> None:
        """Tokens came."""
        if request_id == self.request_id:
            self._client._received(self, delta)

    def on_end(self, request_id: str, end: wire.GenerateEnd) -> None:
        """The attempt ended."""
        if request_id == self.request_id:
            self._client._ended(self, end)


class GenerationClient:
    """Routes requests over the fleet. Lives on one event loop; every method is called there."""

    def __init__(
        self,
        token: str,
        *,
        owner: str,
        vocab_size: int,
        eos_ids: frozenset[int],
        waits: WaitRegistry,
        decode: Callable[[list[int]], str] | None = None,
        on_tokens: Callable[[int], object] = lambda _tokens: None,
        routes: bool = False,
        evens: bool = False,
    ) -> None:
        """`routes`: of answers that may be trained, the experts of each token are wanted, too. `evens`: requests move
        to servers that have much less to do, for no later ones will come there (a synchronous loop).
        """
        self._token = token
        self._owner = owner
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._decode = decode
        self._on_tokens = on_tokens
        self._routes = routes
        self._evens = evens and not routes  # tokens with routes come at an answer's end: a move would lose them
        self._fleet = Fleet()
        self._links: dict[str, AgentLink] = {}
        self._numbers = count()
        self._affinity: LRUCache[str, str] = LRUCache(AFFINITIES)
        self._active: set[ActiveGeneration] = set()
        self._waiting: WaitingRequests[ActiveGeneration] = WaitingRequests(waits)
        self._lost = LostService(waits, "generation", "a generation server to be reached")
        self._lost.asked()
        self._routing = False  # waiting requests are looked at soon
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.tokens_total = 0
        self.resubmissions_total = 0
        self.reprefilled_total = 0  # tokens, prompts included, sent to be computed again

    # ---- the fleet

    def update_fleet(self, servers: Iterable[wire.ServerState]) -> None:
        """The controller's newest view, whole. Servers it says are dead lose their requests at once."""
        own = {server_id: link.running for server_id, link in self._links.items()}
        self._fleet.update(servers, own)
        for state in self._fleet.states():
            link = self._links.get(state.server_id)
            if link is not None and link.address != state.address:
                self._drop_link(state.server_id)
                link = None
            if link is None and state.live:
                self._links[state.server_id] = AgentLink(state.server_id, state.address, self._token, self.route)
            elif link is not None and link.running and not state.live:
                link.abandon("the controller missed its heartbeats")
        for server_id in [name for name in self._links if name not in self._fleet and not self._links[name].running]:
            self._drop_link(server_id)
        self.route()

    def can_serve(self, floor: int) -> bool:
        """Whether some server may take a request with this floor now."""
        return any(routing.eligible(server, floor) for server in self._servers())

    def servers(self) -> list[routing.RoutedServer]:
        """The fleet as the routing rules see it."""
        return self._servers()

    # ---- requests

    def open(
        self,
        ask: Ask,
        on_done: Callable[[ActiveGeneration], None],
        on_more: Callable[[ActiveGeneration], None] | None = None,
    ) -> ActiveGeneration:
        """Begin a generation; `on_more` is called after each delta. Raises DataError for ids the model doesn't have."""
        ids = ask.prompt_ids
        if not len(ids):
            raise DataError("a generation needs at least one prompt token", fix="give the model something to continue")
        if not in_vocabulary(ids, self._vocab_size):
            raise DataError(
                f"a prompt has a token id outside 0…{self._vocab_size - 1}", fix="use the model's own tokenizer"
            )
        accumulator = Accumulator(
            ids, ask.sampling, eos_ids=self._eos_ids, vocab_size=self._vocab_size, decode=self._decode
        )
        generation = ActiveGeneration(self, ask, accumulator, on_done, on_more)
        if accumulator.remaining <= 0:
            generation.finish(accumulator.result("length"))
            return generation
        self._active.add(generation)
        self._submit(generation)
        self._arm_sweeper()
        return generation

    async def generate(self, ask: Ask, *, deadline_s: float = 0.0) -> GenerationResult:
        """Begin a generation and wait for its end. Cancelling the caller cancels it at its server."""
        done: asyncio.Future[GenerationResult] = asyncio.get_running_loop().create_future()

        def finished(generation: ActiveGeneration) -> None:
            if done.done():
                return
            if isinstance(generation.outcome, GenerationResult):
                done.set_result(generation.outcome)
            else:
                done.set_exception(generation.outcome or InfraError("a generation ended without an outcome"))

        generation = self.open(ask, finished)
        try:
            async with asyncio.timeout(deadline_s or None):
                return await done
        except TimeoutError as error:
            raise InfraError(f"no answer within {deadline_s} s", fix="see why its server makes no progress") from error
        finally:
            if generation.outcome is None:
                generation.cancel()

    def release(self, affinity: str) -> None:
        """No request of this group will follow: its server needn't be remembered."""
        self._affinity.pop(affinity, None)

    async def close(self) -> None:
        """Cancel what runs and end all streams."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for generation in list(self._active):
            self._cancel(generation)
        for server_id in list(self._links):
            self._drop_link(server_id)
        self._lost.answered()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- routing

    def route(self) -> None:
        """Something changed: send, soon, every waiting request that has an eligible server now."""
        if any(link.connected for link in self._links.values()):
            self._lost.answered()
        elif self._links:
            self._lost.failed(time.monotonic())
        if self._waiting and not self._routing:
            self._routing = True
            asyncio.get_running_loop().call_soon(self._route)

    def _route(self) -> None:
        """Many may wait: after some of them it is others' turn."""
        self._routing = False
        for sent, generation in enumerate(self._waiting.lowest()):
            if sent == ROUTED_AT_ONCE:
                self.route()
                return
            if not self._submit(generation):
                return

    def _submit(self, generation: ActiveGeneration) -> bool:
        """Send a request to a server; False when it has to wait for one."""
        ask = generation.ask
        chosen = routing.choose(self._servers(), generation.ask.floor, self._affinity.get(ask.affinity))
        if chosen is None:
            self._wait(generation)
            return False
        self._waiting.discard(generation)
        self._affinity[ask.affinity] = chosen
        generation.attempts += 1
        if (made := generation.accumulator).moved:
            self.reprefilled_total += made.prompt_tokens + made.tokens
        generation.server_id = chosen
        generation.request_id = f"{self._owner}.{next(self._numbers)}"
        self._links[chosen].start(self._start(generation), generation)
        return True

    def _wait(self, generation: ActiveGeneration) -> None:
        generation.server_id = generation.request_id = ""
        if generation not in self._waiting:
            self._waiting.add(generation, generation.ask.floor)

    def _start(self, generation: ActiveGeneration) -> wire.GenerateStart:
        ask, made = generation.ask, generation.accumulator
        sampling = ask.sampling
        return wire.GenerateStart(
            request_id=generation.request_id,
            token_ids=made.input_bytes(),
            sampling=common.Sampling(
                temperature=sampling.temperature,
                max_new_tokens=made.remaining,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop_token_ids=sorted({*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._eos_ids)}),
                stop=sampling.stop,
                seed=ask.seed,
                min_new_tokens=min(max(0, sampling.min_new_tokens - made.tokens), made.remaining),
                ignore_eos=sampling.ignore_eos,
            ),
            floor=generation.ask.floor,
            key=ask.key,
            routes=self._routes and ask.key is not None,
            attachments=[common.Attachment(kind=IMAGE, data=image.data) for image in ask.images],
        )

    def _servers(self) -> list[routing.RoutedServer]:
        return self._fleet.servers(
            {server_id: link.running for server_id, link in self._links.items() if link.connected}
        )

    # ---- what servers say

    def _received(self, generation: ActiveGeneration, delta: wire.GenerateDelta) -> None:
        try:
            tokens = generation.accumulator.add(
                delta.token_ids, delta.logprobs, delta.spans, delta.routes, delta.route_bytes
            )
        except BadDelta as error:
            log.error("%s streamed what can't be true: %s", generation.server_id, error.message)
            self._fleet.penalise(generation.server_id, time.monotonic())
            self._links[generation.server_id].cancel(generation.request_id)
            self._resubmit(generation)
            return
        self.tokens_total += tokens
        self._on_tokens(tokens)
        if tokens:
            generation.grown()

    def _ended(self, generation: ActiveGeneration, end: wire.GenerateEnd) -> None:
        following = generation.accumulator.end(end.reason, end.matched)
        if following is Next.FINISHED:
            self._active.discard(generation)
            generation.finish(generation.accumulator.result())
            return
        if following is Next.REFUSED:
            self._active.discard(generation)
            known = end.HasField("fault")
            reason = wire.EndReason.Name(end.reason)
            generation.finish(from_fault(end.fault) if known else InfraError(f"{generation.server_id}: {reason}"))
            return
        # No end of the sample: the server gives it back, and it goes on elsewhere with the tokens that it has. What
        # this client knows of the server is up to a heartbeat old, so the server is doubted before the next is chosen;
        # else the same one would be chosen, refuse again at once, and the request circle.
        now = time.monotonic()
        if end.reason == wire.END_REASON_BELOW_FLOOR:
            self._fleet.refused(generation.server_id, generation.ask.floor, now)
        elif end.reason == wire.END_REASON_DRAINING:
            self._fleet.draining(generation.server_id, now)
        elif end.reason == wire.END_REASON_ENGINE_LOST:
            self._fleet.penalise(generation.server_id, now)
        self._resubmit(generation)

    def _resubmit(self, generation: ActiveGeneration) -> None:
        self.resubmissions_total += 1
        generation.accumulator.moved = generation.accumulator.tokens
        self._wait(generation)
        self.route()

    # ---- the end of a request, of a link

    def _cancel(self, generation: ActiveGeneration) -> None:
        if generation.outcome is not None:
            return
        if generation.server_id and (link := self._links.get(generation.server_id)):
            link.cancel(generation.request_id)
        generation.request_id = ""
        self._waiting.discard(generation)
        self._active.discard(generation)

    def _drop_link(self, server_id: str) -> None:
        task = asyncio.create_task(self._links.pop(server_id).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _arm_sweeper(self) -> None:
        if self._sweeper is None and self._active:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Leave streams that stand still, and let doubts about servers expire."""
        self._sweeper = None
        now = time.monotonic()
        for link in list(self._links.values()):
            if self._fleet.asleep(link.server_id):
                link.last_event = now
            limit = STALL_S if link.server_id in self._fleet else ABSENT_STALL_S
            if link.running and now - link.last_event > limit:
                link.abandon(f"no event for {limit} s with {link.running} requests")
        if self._fleet.expire(now):
            self.route()
        if self._evens and not self._waiting:
            self._even_out()
        self._arm_sweeper()

    def _even_out(self) -> None:
        """Requests of the fullest server go on at the emptiest; those with the fewest tokens cost least there."""
        own = {server_id: link.running for server_id, link in self._links.items() if link.connected}
        awake = [server for server in self._servers() if not self._fleet.asleep(server.server_id)]
        found = routing.evened(awake, own, random.random())
        if found is None:
            return
        full, empty, count = found
        there = [generation for generation in self._active if generation.server_id == full]
        there.sort(key=lambda generation: generation.accumulator.prompt_tokens + generation.accumulator.tokens)
        for generation in there[:count]:
            self._links[full].cancel(generation.request_id)
            self._affinity[generation.ask.affinity] = empty
            self._resubmit(generation)
