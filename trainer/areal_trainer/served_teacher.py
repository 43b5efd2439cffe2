"""A teacher behind an address: log-probabilities of sampled tokens by the native HTTP API of SGLang (`/generate`).

Rank 0 asks, a few requests at a time, while all ranks compute their own pass. Owns the reading of an answer: each entry
is of the token that was asked about, or the answer is refused; at the start it spells some tokens, which must be the
policy's. A server that is away, or is silent, is waited for, with a deadline.
"""

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import httpx
import numpy as np
import torch
from areal.errors import DataError, InfraError
from areal.net.heartbeat import Backoff
from areal.observe.waits import SERVED_TEACHER, WaitRegistry
from numpy.typing import NDArray

from areal_trainer.data.batch import TokenBatch
from areal_trainer.engine.group import RankGroup, RankMessage, first_only, wait_together
from areal_trainer.frozen_model import Answer, FrozenQuestion

_log = logging.getLogger(__name__)

KEY_VARIABLE = "TEACHER_API_KEY"  # of the trainer's environment: sent as the bearer token
_A_REQUEST = 16  # sequences: the server batches, too
_AT_ONCE = 8  # requests
_CALL_S = 300.0  # of one try: the longest sequences on a busy server
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_ABOVE_ONE = 1e-3  # a log-probability above this is none; rounding gives less
_SPELLED = 64  # token ids whose texts are compared at the start
_FIRST_SPELLED = 8  # and so many at a time, rising: an id beyond its vocabulary ends an SGLang server


class ServedTeacher:
    """Every rank has one, and asks in the same order."""

    def __init__(
        self,
        url: str,
        ranks: RankGroup,
        waits: WaitRegistry,
        *,
        away_s: float,
        start_s: float = 0.0,
        http: httpx.Client | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`away_s` is how long the server may be away, `start_s` at the start: it may load its model then."""
        self._url = url.rstrip("/")
        self._waits = waits
        self._away_s = away_s
        self._start_s = max(start_s, away_s)
        self._clock = clock
        self._sleep = sleep
        self._asks = FirstAsks(ranks, "areal-served-teacher")
        key = os.environ.get(KEY_VARIABLE, "").strip()  # a line's end from a Secret's file would be told by the error
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(_CALL_S, connect=10.0)
        self._http = http or httpx.Client(timeout=timeout, headers=headers, trust_env=False)

    def ready(self, texts: Sequence[str]) -> None:
        """Wait until it answers, and compare how it spells tokens; `texts` are the policy's, by id. A collective.

        Raises DataError for a wrong address or another vocabulary, before the first step.
        """

        def begins() -> RankMessage:
            self._scored([np.zeros(2, np.int64)], self._start_s)
            self._refuse_other_texts(texts)
            return RankMessage({}, {})

        self._asks.begin(begins)()

    def ask(self, question: FrozenQuestion) -> Answer:
        tokens, chosen = question.tokens, question.chosen
        found = self._asks.begin(lambda: RankMessage({}, {"logprobs": self._of(tokens, chosen)}))
        return lambda: torch.from_numpy(found().arrays["logprobs"].astype(np.float32))

    def close(self) -> None:
        """Nothing more is asked."""
        self._asks.close()

    def _of(self, tokens: TokenBatch, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Of the trainable tokens of the `chosen` sequences, [tokens]; 0 elsewhere."""
        if len(tokens.image_places):
            raise DataError("samples have images, and a served teacher is given none", fix="name a teacher by its path")
        out = np.zeros(tokens.tokens, np.float32)
        places = [
            (int(tokens.offsets[at]), int(tokens.offsets[at + 1]))
            for at in np.flatnonzero(chosen)
            if tokens.lengths[at] > 1
        ]
        parts = [places[at : at + _A_REQUEST] for at in range(0, len(places), _A_REQUEST)]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="areal-teacher") as pool:
            asked = [[tokens.token_ids[begin:end] for begin, end in part] for part in parts]
            for part, found in zip(parts, pool.map(self._scored, asked), strict=True):
                for (begin, end), logprobs in zip(part, found, strict=True):
                    out[begin:end] = logprobs
        out[~tokens.trainable()] = 0.0
        return out

    def _refuse_other_texts(self, texts: Sequence[str]) -> None:
        """Compare texts of token ids. Of a server without a tokenizer only the files at `path` are known."""
        if not texts:
            return  # an empty sequence ends an SGLang server, too
        ids = np.linspace(0, len(texts) - 1, min(_SPELLED, len(texts))).astype(np.int64)
        for part in np.split(ids, range(_FIRST_SPELLED, len(ids), _FIRST_SPELLED)):
            pairs = [
                (token, texts[token], told)
                for token, told in zip(part.tolist(), self._spelled(part), strict=False)
                if isinstance(told, str)
                and told.strip()
                and texts[token].strip()
                and "\ufffd" not in told + texts[token]
            ]
            other = [pair for pair in pairs if pair[1].strip() != pair[2].strip()]
            if 2 * len(other) > len(pairs):
                token, mine, told = other[0]
                raise self._refused(f"has another vocabulary: token id {token} is {told!r} there and {mine!r} here")

    def _spelled(self, ids: NDArray[np.int64]) -> list[Any]:
        """The server's spelling of each; none where it can't."""
        body = {**_question([ids]), "return_text_in_logprobs": True}
        try:
            reply = self._http.post(f"{self._url}/generate", json=body)
            return [triple[2] for triple in reply.json()[0]["meta_info"]["input_token_logprobs"]]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            _log.info("the teacher spells no tokens: %s: %s", type(error).__name__, error)
            return []

    def _scored(self, sequences: Sequence[NDArray[np.int64]], away_s: float | None = None) -> list[NDArray[np.float32]]:
        """Log-probabilities of each sequence's tokens, the first one's 0."""
        away_s = self._away_s if away_s is None else away_s
        words = f"the teacher at {self._url} to score {len(sequences)} sequences"
        with self._waits.waiting(SERVED_TEACHER, words, deadline_s=away_s + _CALL_S):
            answers = self._posted(_question(sequences), away_s)
        if not isinstance(answers, list) or len(answers) != len(sequences):
            raise self._refused(f"answers for {_count(answers)} sequences, and was asked about {len(sequences)}")
        return [self._read(ids, answer) for ids, answer in zip(sequences, answers, strict=True)]

    def _read(self, ids: NDArray[np.int64], answer: Any) -> NDArray[np.float32]:
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        triples = meta.get("input_token_logprobs") if isinstance(meta, dict) else None
        if not isinstance(triples, list) or len(triples) != len(ids):
            raise self._refused(f"gives {_count(triples)} log-probabilities of a sequence of {len(ids)} tokens")
        out = np.zeros(len(ids), np.float32)
        for place, (wanted, triple) in enumerate(zip(ids.tolist(), triples, strict=True)):
            if not isinstance(triple, list) or len(triple) < 2:
                raise self._refused(f"gives {triple!r} at place {place}, not a log-probability and its token id")
            value, token = triple[0], triple[1]
            if token != wanted:
                raise self._refused(f"speaks of token id {token} at place {place}, where {wanted} was asked about")
            if place == 0:
                continue
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value > _ABOVE_ONE:
                raise self._refused(f"gives {value!r} for token id {token} at place {place}: no log-probability")
            out[place] = value
        return out

    def _posted(self, body: dict[str, Any], away_s: float) -> Any:
        """The answer, once the server is there. Raises DataError when it refuses, InfraError when it stays away."""
        began, backoff = self._clock(), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            try:
                reply = self._http.post(f"{self._url}/generate", json=body)
                if reply.status_code == 200:
                    return reply.json()
                said = f"HTTP {reply.status_code}: {reply.text[:300]}"
                if reply.status_code not in _AGAIN:
                    raise self._refused(f"answers {said}")
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            except ValueError as error:
                raise self._refused(f"answers no JSON: {error}") from error
            pause = backoff.failed()
            if self._clock() + pause > began + away_s:
                raise InfraError(
                    f"the teacher at {self._url} gave no answer for {self._clock() - began:.0f} s ({said})",
                    fix="start it again at that address, or make it faster; a restart goes on from the last checkpoint",
                )
            self._sleep(pause)

    def _refused(self, said: str) -> DataError:
        return DataError(
            f"the teacher at {self._url} {said}",
            fix="serve the model of algorithm.teacher.path there, by SGLang's native API with input log-probabilities",
        )


class FirstAsks:
    """Work of rank 0 on a thread beside the pass that all ranks compute, one piece after the other.

    Every rank has one, and calls it in the same order. The thread never keeps a process that fails.
    """

    def __init__(self, ranks: RankGroup, name: str) -> None:
        self._ranks = ranks
        self._queue: queue.SimpleQueue[tuple[Future[RankMessage], Callable[[], RankMessage]] | None] = (
            queue.SimpleQueue()
        )
        first_only(ranks, lambda: threading.Thread(target=self._run, name=name, daemon=True)).start()

    def begin(self, work: Callable[[], RankMessage]) -> Callable[[], RankMessage]:
        """Rank 0 starts `work`; what is returned waits for it, and gives its message on every rank.

        What `work` raises, rank 0 raises. Rank 0 speaks while the others wait, however long it takes.
        """
        future: Future[RankMessage] = Future()
        self._queue.put((future, work))

        def found() -> RankMessage:
            wait_together(self._ranks, lambda within_s: bool(wait([future], within_s).done))
            return self._ranks.tell(first_only(self._ranks, lambda: future).result())

        return found

    def close(self) -> None:
        """End the thread, after what it works at."""
        self._queue.put(None)

    def _run(self) -> None:
        while (piece := self._queue.get()) is not None:
            future, work = piece
            try:
                future.set_result(work())
            except BaseException as error:  # raised by who waits for it
                future.set_exception(error)


def _question(sequences: Sequence[NDArray[np.int64]]) -> dict[str, Any]:
    return {
        "input_ids": [ids.tolist() for ids in sequences],
        "return_logprob": True,
        "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
    }


def _count(value: Any) -> str:
    return str(len(value)) if isinstance(value, list) else "no"
