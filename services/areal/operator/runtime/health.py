"""Whether this process is alive and ready, for the kubelet.

Owns the two answers and the thread that gives them: `/healthz` (kill me) and `/readyz` (my caches are full). The thread
answers while the event loop is stuck, which is one of the things it has to tell.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from areal.operator.runtime.reflector import Pulse
from areal.operator.runtime.times import HealthTimes, WatchTimes


class Health:
    """What is wrong, as sentences; nothing is good. Safe from any thread."""

    def __init__(
        self,
        *,
        synced: Callable[[], bool],
        pulses: Sequence[Pulse],
        times: HealthTimes | None = None,
        watch: WatchTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._synced = synced
        self._pulses = pulses
        self._times = times or HealthTimes()
        self._silence_s = (watch or WatchTimes()).longest_s * self._times.watch_silence
        self._clock = clock
        self._beat_at = clock()
        self.lag_s = 0.0

    async def beat(self) -> None:
        """Show that the event loop turns, until cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(self._times.beat_s)
            self._beat_at = self._clock()
            self.lag_s = max(0.0, self._beat_at - before - self._times.beat_s)

    def ills(self) -> list[str]:
        """Why this process should be restarted."""
        now = self._clock()
        ills = []
        stuck_s = now - self._beat_at
        if max(stuck_s - self._times.beat_s, self.lag_s) > self._times.loop_lag_s:
            ills.append(f"the event loop is {max(stuck_s, self.lag_s):.0f} s behind")
        silent = ((pulse.resource, now - pulse.heard_at) for pulse in self._pulses)
        return ills + [f"nothing was heard of {name} for {s:.0f} s" for name, s in silent if s > self._silence_s]

    def unready(self) -> list[str]:
        """Why this process can't do its work yet."""
        return [] if self._synced() else ["caches are not synced"]


class HealthServer:
    """Answers in a thread of its own. Use as a context manager."""

    def __init__(self, health: Health, host: str, port: int) -> None:
        answers = {"/healthz": health.ills, "/readyz": health.unready}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = answers.get(self.path.partition("?")[0])
                wrong = found() if found else ["ask for /healthz or /readyz"]
                body = "\n".join(wrong or ["ok"]).encode() + b"\n"
                self.send_response(404 if found is None else 503 if wrong else 200)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> HealthServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
