"""An engine as a real process on a free port, and a small client for tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
from support.redis_server import free_port

ENGINES = {
    "embedded": ["areal.engine.main"],
    "sglang": [
        "areal.engine.sglang_cpu",
        "--device",
        "cpu",
        "--attention-backend",
        "torch_native",
        "--disable-overlap-schedule",
        "--sleep-on-idle",
        "--log-level",
        "error",
        "--max-total-tokens",
        "16384",
        "--incremental-streaming-output",
    ],
}


class Background:
    """A call that runs while the test goes on."""

    def __init__(self, work: Any) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Any) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self, timeout_s: float = 60.0) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the call did not end"
        if self._error is not None:
            raise self._error
        return self._result


class EngineServer:
    """Started by `start`; always `stop` it."""

    def __init__(self, kind: str, model: Path, *flags: str) -> None:
        self.kind = kind
        self.model = model
        self.port = free_port()
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=90.0, trust_env=False)

    def start(self, deadline_s: float = 300.0) -> EngineServer:
        module, *flags = ENGINES[self.kind]
        command = [sys.executable, "-m", module, "--model-path", str(self.model), "--port", str(self.port)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}
        self._process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--dtype", "float32", *flags, *self._flags],
            env=env,
            start_new_session=True,
        )
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            assert self._process.poll() is None, f"the engine exited with {self._process.returncode}"
            try:
                if self.http.get("/health", timeout=5.0).status_code == 200:
                    return self
            except httpx.HTTPError:
                time.sleep(0.1)
        raise AssertionError("the engine did not start")

    @property
    def pid(self) -> int:
        """Of a server that runs."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        self.http.close()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()

    # ---- calls

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, content=orjson.dumps(body), headers={"content-type": "application/json"})

    def generate(self, ids: Any, sampling: Any = None, **fields: Any) -> Any:
        fields.setdefault("return_logprob", True)
        answer = self.post("/generate", input_ids=ids, sampling_params=sampling or {}, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def generating(self, ids: Any, sampling: Any = None, **fields: Any) -> Background:
        return Background(lambda: self.generate(ids, sampling, **fields))

    def events(self, ids: Any, sampling: Any, **fields: Any) -> list[dict[str, Any]]:
        """All events of a streamed call."""
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "stream": True, **fields}
        with self.http.stream(
            "POST", "/generate", content=orjson.dumps(body), headers={"content-type": "application/json"}
        ) as response:
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def until_running(self, count: int = 1, deadline_s: float = 20.0) -> None:
        """Wait until so many requests make tokens."""
        until = time.monotonic() + deadline_s
        while time.monotonic() < until:
            load = self.http.get("/v1/loads").json()["loads"][0]
            if load["num_running_reqs"] >= count:
                return
            time.sleep(0.005)
        raise AssertionError(f"{count} requests did not start")


def logprobs(answer: dict[str, Any]) -> list[float]:
    """Of the output tokens."""
    return [triple[0] for triple in answer["meta_info"]["output_token_logprobs"]]
