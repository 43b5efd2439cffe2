"""The engine's one thread: admits requests, steps the batch, answers commands between steps.

Owns all mutable state of generation: queue, rows, cache, weights in use and their version. Others reach it only through
`post` and read the `stats` it publishes. Because commands are handled between steps only, every token has exactly one
weight version, and a swap is the assignment of a reference.

Every token is made by the decode step: admission only fills the cache up to the token before the last. So siblings of
a prompt share one prefill, and a token's numbers don't depend on how its request got into the batch.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from areal.engine import commands, prefill, sampling
from areal.engine.cache import KVCache
from areal.engine.module_model import ServedModel
from areal.engine.request import GenerateRequest, Output
from areal.engine.rows import Running, RunningRows
from areal.engine.stats import Meter, Stats
from areal.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SchedulerLimits:
    """How much may run at once."""

    max_running: int = 128
    max_total_tokens: int = 1 << 18  # positions of all rows together, as allocated
    max_prefill_tokens: int = 8192  # admitted in one step: bounds how long running requests stand still


class DecodeScheduler:
    """Start it, `post` commands, receive outputs through `deliver` (called on its thread; must only hand them over)."""

    def __init__(
        self,
        model: ServedModel,
        weights: Any,
        *,
        version: str,
        model_path: str,
        limits: SchedulerLimits,
        deliver: Callable[[list[Output]], None],
        on_failure: Callable[[BaseException], None],
        decode_text: Callable[[list[int]], str] | None = None,
    ) -> None:
        self._model = model
        self._held: Any = weights  # None: released, and not loaded again
        self._released: frozenset[str] = frozenset()
        self._version = version
        self._path = model_path
        self._limits = limits
        self._deliver = deliver
        self._on_failure = on_failure
        self._decode_text = decode_text
        self._cache: Any = model.new_cache()
        self._rows = RunningRows(limits.max_running)
        self._commands: queue.SimpleQueue[commands.Command] = queue.SimpleQueue()
        self._waiting: deque[Running] = deque()
        self._behind: deque[Running] = deque()  # arrived after a Load that waits for those before it
        self._pending_load: commands.Load | None = None
        self._pending_flushes: list[commands.Flush] = []
        self._live: dict[str, Running] = {}
        self._prefixes = prefill.Prefixes()
        self._paused = False
        self._stopped = False
        self._outputs: list[Output] = []
        self._meter = Meter()
        self.stats = Stats(version, model_path)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Begin stepping."""
        self._thread.start()

    def post(self, command: commands.Command) -> None:
        """Hand over a command from any thread."""
        self._commands.put(command)

    @property
    def weights(self) -> Any:
        """The weights in use; never changed in place. Raises DataError while there are none."""
        if self._held is None:
            raise DataError("the engine's weights are released", fix="resume them and load a version")
        return self._held

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end after `StopThread`."""
        self._thread.join(timeout_s)

    # ---- the loop

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while not self._stopped:
                self._take_commands()
                if not self._paused and not self._stopped:
                    self._admit()
                    if self._rows.count:
                        self._step()
                    self._try_load()
                self._publish()
        except BaseException as error:
            log.exception("the scheduler failed; the engine must be restarted")
            self._on_failure(error)

    def _take_commands(self) -> None:
        """Handle what is there; wait for something when there is nothing else to do."""
        idle = self._paused or not (self._rows.count or self._waiting)
        while not self._stopped:
            try:
                command = self._commands.get(block=idle)
            except queue.Empty:
                return
            self._handle(command)
            idle = False

    def _publish(self) -> None:
        """Give out the step's outputs and a picture of the state."""
        if self._pending_flushes and not self._live:
            self._close_holes()
            for flush in self._pending_flushes:
                if not flush.done.cancelled():
                    self._answer(flush.done, self._flush())
            self._pending_flushes.clear()
        self._show()
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._deliver(outputs)

    def _show(self) -> None:
        rows = self._rows
        self.stats = self._meter.picture(
            self._version,
            self._path,
            paused=self._paused,
            running=len(self._live) - len(self._waiting) - len(self._behind),
            waiting=len(self._waiting) + len(self._behind),
            used_tokens=int(rows.position[: rows.count].sum()) + rows.count,
        )

    def _answer(self, done: Future[commands.CommandReply], answer: commands.CommandReply) -> None:
        """Who has the answer to a command finds its effect in the picture."""
        self._show()
        done.set_result(answer)

    # ---- commands

    def _handle(self, command: commands.Command) -> None:
        if not isinstance(command, commands.Add):
            self._close_holes()
        match command:
            case commands.Add(requests):
                self._add(requests)
            case commands.Abort(rids):
                self._abort(rids)
            case commands.Pause(mode, done=done):
                self._pause(mode)
                self._answer(done, commands.CommandReply())
            case commands.Continue(done=done):
                if self._released or self._held is None:
                    missing = ", ".join(sorted(self._released | (frozenset() if self._held else {commands.WEIGHTS})))
                    self._answer(done, commands.CommandReply(False, f"{missing} must be resumed or loaded first"))
                    return
                self._paused = False
                self._answer(done, commands.CommandReply())
            case commands.Release(kinds, done=done):
                self._answer(done, self._release(kinds))
            case commands.Resume(kinds, done=done):
                self._answer(done, self._resume(kinds))
            case commands.Load():
                self._request_load(command)
            case commands.SetVersion(version, abort_all, done=done):
                if abort_all:
                    self._abort(None)
                self._set_version(version)
                self._answer(done, commands.CommandReply())
            case commands.Flush(when_idle, done=done):
                if when_idle and self._live:
                    self._pending_flushes.append(command)
                else:
                    self._answer(done, self._flush())
            case commands.StopThread():
                self._abort(None)
                self._stopped = True

    def _add(self, requests: list[GenerateRequest]) -> None:
        queued = self._behind if self._pending_load is not None else self._waiting
        for request in requests:
            if request.rid in self._live:
                refusal = sampling.rid_taken(request.rid)
                self._outputs.append(Output(request, [], [], [], self._version, refusal))
                continue
            item = Running(request)
            self._live[request.rid] = item
            self._meter.requests += 1
            self._meter.prompt_tokens += len(request.input_ids)
            queued.append(item)

    def _abort(self, rids: Iterable[str] | None) -> None:
        items = [self._live[rid] for rid in (list(self._live) if rids is None else rids) if rid in self._live]
        for item in items:
            self._meter.aborted += 1
            if item.row >= 0:
                self._finish_row(item.row, sampling.ABORTED)
            else:
                self._finish_waiting(item, sampling.ABORTED if item.marks else sampling.ABORTED_QUEUED)
        if items:
            gone = {id(item) for item in items}
            self._waiting = deque(item for item in self._waiting if id(item) not in gone)
            self._behind = deque(item for item in self._behind if id(item) not in gone)
            self._close_holes()

    def _pause(self, mode: str) -> None:
        self._paused = True
        if mode == "abort":
            self._abort(None)
        elif mode == "retract":
            self._retract()
        self._try_load()

    def _retract(self) -> None:
        """All rows back to the front of the queue, oldest first; their cache is forgotten, their tokens are not."""
        items = [self._rows.save(row) for row in range(self._rows.count)]
        self._rows.compact()
        self._prefixes.clear()
        for item in items:
            item.retractions += 1
        self._meter.retracted += len(items)
        self._waiting.extendleft(reversed(items))

    def _release(self, kinds: frozenset[str]) -> commands.CommandReply:
        """Drop what the memory holds. Stock SGLang ends where this refuses."""
        if self._rows.count or not (self._paused or not self._live):
            return commands.CommandReply(False, "requests run: pause with mode retract first")
        self._paused = True
        self._released |= kinds
        self._prefixes.clear()
        if commands.KV_CACHE in kinds:
            self._cache.drop()
        if commands.WEIGHTS in kinds:
            self._held = None
        return commands.CommandReply()

    def _resume(self, kinds: frozenset[str]) -> commands.CommandReply:
        if kinds - self._released:
            return commands.CommandReply(False, f"{', '.join(sorted(kinds - self._released))} isn't released")
        self._released -= kinds
        if commands.KV_CACHE in kinds:
            self._cache.reset()
        return commands.CommandReply()

    def _request_load(self, command: commands.Load) -> None:
        if commands.WEIGHTS in self._released:
            self._answer(
                command.done, commands.CommandReply(False, "the memory of weights is released: resume it first")
            )
            return
        if self._pending_load is not None:
            self._answer(command.done, commands.CommandReply(False, "another weight update waits for running requests"))
            return
        if command.abort_all:
            self._abort(None)
        self._pending_load = command
        self._try_load()

    def _try_load(self) -> None:
        """Swap when paused, or when everything that came before the load has ended."""
        load = self._pending_load
        if load is None or not (self._paused or not (self._rows.count or self._waiting)):
            return
        self._pending_load = None
        self._held = load.weights
        self._path = load.path
        self._prefixes.clear()
        if load.version is not None:
            self._set_version(load.version)
        flushed = self._flush() if load.flush_cache else commands.CommandReply()
        if flushed.success:
            self._answer(load.done, commands.CommandReply(True, "Succeeded to update model weights."))
        else:
            unflushed = "Weights were updated, but the cache was not flushed: requests hold it"
            self._answer(load.done, commands.CommandReply(False, unflushed))
        self._waiting.extend(self._behind)
        self._behind.clear()

    def _set_version(self, version: str) -> None:
        self._version = version
        for row in range(self._rows.count):
            item = self._rows.running[row]
            if item is not None:
                item.mark(version, int(self._rows.made[row]))

    def _flush(self) -> commands.CommandReply:
        if self._rows.count:
            return commands.CommandReply(False, f"{self._rows.count} requests hold the cache")
        if commands.KV_CACHE not in self._released:
            self._cache.reset()
        return commands.CommandReply()

    # ---- steps

    def _admit(self) -> None:
        """Take waiting requests in order while rows and memory last, and fill their cache."""
        taken: list[Running] = []
        scored: list[Running] = []
        budget = self._limits.max_prefill_tokens
        holes = self._rows.holes()
        active = self._rows.count - len(holes)
        capacity = self._cache.capacity if active else 0
        if not active and self._waiting and self._cache.capacity > 4 * self._needs(self._waiting[0]):
            self._cache.reset()
        while self._waiting and budget > 0:
            item = self._waiting[0]
            if item.request.sampling.max_new_tokens > 0:
                wider = max(capacity, self._needs(item))
                rows = active + len(taken) + 1
                if rows > self._limits.max_running or (rows > 1 and rows * wider > self._limits.max_total_tokens):
                    break
                capacity = wider
                taken.append(item)
            else:
                scored.append(item)
            budget -= len(item.request.input_ids) + len(item.made_ids)
            self._waiting.popleft()
        if scored:
            self._score(scored)
        if taken:
            self._place(taken, holes, capacity)
        self._close_holes()

    def _needs(self, item: Running) -> int:
        return KVCache.capacity_for(len(item.request.input_ids) + item.request.sampling.max_new_tokens)

    def _place(self, taken: list[Running], holes: list[int], capacity: int) -> None:
        """Give rows to admitted requests, those left by others first, and fill their cache."""
        used = self._rows.count
        rows = max(used, used - len(holes) + len(taken))
        fitting = max(rows, min(self._limits.max_running, self._limits.max_total_tokens // capacity))
        self._cache.reserve(min(1 << (rows - 1).bit_length(), fitting), capacity, used)
        want_logprobs = [item for item in taken if _wants_prompt(item)]
        if want_logprobs:
            prefill.score(self._model, self.weights, want_logprobs, self._limits.max_prefill_tokens)
        eos, shape = self._model.config.eos_token_ids, self._model.image_shape
        placeholder = () if shape is None else (shape.token,)  # written, it stands for no image: the answer ends there
        for place, item in enumerate(taken):
            params = item.request.sampling
            stops = params.stop_token_ids + placeholder + (() if params.ignore_eos else eos)
            row = holes[place] if place < len(holes) else self._rows.count
            self._rows.place(row, item, tuple(dict.fromkeys(stops)))
            item.mark(self._version, len(item.made_ids))
        prefill.fill(self._model, self.weights, self._cache, self._prefixes, taken, self._limits.max_prefill_tokens)

    def _score(self, items: list[Running]) -> None:
        """Requests that only want log-probabilities of their prompt never take a row."""
        wanted = [item for item in items if _wants_prompt(item)]
        if wanted:
            prefill.score(self._model, self.weights, wanted, self._limits.max_prefill_tokens)
        for item in items:
            self._finish_waiting(item, sampling.length(0))

    def _step(self) -> None:
        """One token for every row; then ends and due chunks."""
        rows = self._rows
        n = rows.count
        self._model.wants_routes = any(item is not None and item.request.return_routes for item in rows.running)
        self._model.shifts = rows.shift[:n]
        logits = self._model.decode(
            self.weights, self._cache, torch.from_numpy(rows.token[:n]), torch.from_numpy(rows.position[:n])
        )
        if self._model.routes is not None:
            rows.add_routes(self._model.routes)
        early = np.flatnonzero(rows.made[:n] < rows.minimum[:n])
        for row in early.tolist():
            stops = rows.stops[row]
            sampling.forbid(logits, row, stops[stops >= 0])
        matchers = rows.matchers()
        for row, matcher in matchers:
            matcher.forbid(logits[row])
        tokens, logprobs = sampling.choose(logits, rows.choice())
        for row, matcher in matchers:
            matcher.take(int(tokens[row]))
        rows.append(tokens, logprobs)
        self._meter.steps += 1
        self._meter.tokens += n
        stopped = rows.stopped()
        broken = ~np.isfinite(logprobs)
        ended = stopped | (rows.made[:n] >= rows.limit[:n]) | broken | rows.has_text_stop[:n]
        for row in np.flatnonzero(rows.due() & ~ended).tolist():
            self._outputs.append(self._with_text(rows.output(row, self._version, None)))
        for row in np.flatnonzero(ended).tolist():
            self._end_row(row, stopped=bool(stopped[row]), broken=bool(broken[row]))

    def _end_row(self, row: int, *, stopped: bool, broken: bool) -> None:
        """Decide how a row ends, if it does; a stop string is asked before a stop token, as SGLang does."""
        rows = self._rows
        item, made = rows.running[row], int(rows.made[row])
        assert item is not None
        if broken:
            self._finish_row(row, sampling.NON_FINITE, drop=1)
            return
        matched = None
        if rows.has_text_stop[row] and self._decode_text is not None:
            matched = sampling.matched_text(rows.ids[row, :made], item.request.sampling.stop, self._decode_text)
        if matched is not None:
            self._finish_row(row, sampling.stop(matched))
        elif stopped:
            self._finish_row(row, sampling.stop(int(rows.token[row])))
        elif made >= rows.limit[row]:
            self._finish_row(row, sampling.length(made))
        elif rows.interval[row] and made - rows.sent[row] >= rows.interval[row]:
            self._outputs.append(self._with_text(rows.output(row, self._version, None)))

    # ---- ends

    def _finish_row(self, row: int, finish: dict[str, Any], drop: int = 0) -> None:
        output = self._rows.output(row, self._version, finish, drop)
        item = self._rows.vacate(row)
        self._prefixes.forget(item)
        del self._live[item.request.rid]
        self._outputs.append(self._with_text(output))

    def _finish_waiting(self, item: Running, finish: dict[str, Any]) -> None:
        del self._live[item.request.rid]
        output = item.output(item.made_ids, item.made_logprobs, self._version, finish)
        self._outputs.append(self._with_text(output))

    def _close_holes(self) -> None:
        source, target = self._rows.compact()
        if source:
            length = int(self._rows.position[: self._rows.count].max()) + 1
            self._cache.copy_rows(torch.tensor(source), torch.tensor(target), length)

    def _with_text(self, output: Output) -> Output:
        """Text of all there is; of an answer that is told in increments, only at its end."""
        if self._decode_text is not None and (output.finish is not None or not output.request.increments):
            output.text = self._decode_text(output.output_ids)
        return output


def _wants_prompt(item: Running) -> bool:
    request = item.request
    return request.return_logprob and request.logprob_start_len >= 0 and item.input_logprobs is None
