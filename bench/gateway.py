"""Gateway benchmark: what a call costs over an engine that answers at once, calls a core, memory of 1,000 sessions.

The engine takes no time, so all of a call's time is the gateway's, HTTP and the client's own side with it. Beside it in
the same run: such sessions through the gateway role, a bare HTTP server with an answer of the same size, and
rllm-model-gateway in front of that server, which records what passes and leaves templates and tokens to the engine
behind it; ours renders, encodes and compares.
Conversations have four calls; the first prompt has about a thousand tokens, each answer 64.

python bench/gateway.py [--sessions 1000] [--rounds 3] [--without-rllm]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psutil

HERE = Path(__file__).resolve().parent

import report  # noqa: E402
from chat_load import TURNS, Place, at_once, in_turn  # noqa: E402
from chat_servers import write_tokenizer  # noqa: E402

CONNECTIONS = 64
TIMED = 0.25  # the share of the sessions that is timed call by call; the others come at once
RLLM = "rllm-model-gateway==0.1.0"
RLLM_ENVIRONMENT = HERE.parent / ".cache" / "rllm"
FRONT = "through the role"  # its processor time alone; the worker's is as in the first row, and its stream's
GOALS = {"p50_ms": 2.0, "p99_ms": 10.0, "calls_per_core_s": 500.0, "rss_mib": 500.0}


@dataclass
class Server:
    """One server under load, and what was measured."""

    name: str
    process: subprocess.Popen[str]
    places: list[Place]
    behind: bool = False  # the bare server's time is in its own
    calls_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # calls a second of its processor time
    wall: list[float] = field(default_factory=list)  # calls a second
    rss_mib: float = 0.0

    def cpu_s(self) -> float:
        return sum(psutil.Process(self.process.pid).cpu_times()[:2])

    def weigh(self) -> None:
        self.rss_mib = psutil.Process(self.process.pid).memory_info().rss / 2**20

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def start_front(tokenizer: str, sessions: int) -> tuple[Server, subprocess.Popen[str]]:
    """The gateway role, and the worker behind it whose sessions it hands calls to."""
    process, url, _, address = begin("front")
    worker, _, places, _ = begin(
        "gateway", "--tokenizer", tokenizer, "--sessions", str(sessions), "--front", url, "--dial", address
    )
    return Server(FRONT, process, places), worker


def start(what: str, *more: str) -> tuple[subprocess.Popen[str], str, list[Place]]:
    """One of `chat_servers.py`."""
    return begin(what, *more)[:3]


def begin(what: str, *more: str) -> tuple[subprocess.Popen[str], str, list[Place], str]:
    """One of `chat_servers.py`, and where it is dialled."""
    command = [sys.executable, str(HERE / "chat_servers.py"), what, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = json.loads(process.stdout.readline())
    return process, told["base_url"], [Place(*place) for place in told["places"]], told.get("address", "")


def start_rllm(behind: str, sessions: int) -> Server | None:
    """rllm-model-gateway in an environment of its own; None when that can't be made."""
    python = RLLM_ENVIRONMENT / "bin" / "python"
    if not (RLLM_ENVIRONMENT / "bin" / "rllm-model-gateway").exists():
        subprocess.run([sys.executable, "-m", "venv", str(RLLM_ENVIRONMENT)], check=True)
        installed = subprocess.run([python, "-m", "pip", "install", "-q", RLLM, "httptools", "uvloop"])
        if installed.returncode:
            return None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(python), "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port), "--worker", behind]
    quiet = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    process = subprocess.Popen([*command, "--store", "memory", "--log-level", "error"], text=True, env=quiet)
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        if process.poll() is not None:
            return None
        try:
            httpx.get(f"{url}/health", trust_env=False).raise_for_status()
            break
        except httpx.TransportError:
            time.sleep(0.1)
    places = [Place(f"{url}/sessions/{number}/v1", "none") for number in range(sessions)]
    return Server("rllm-model-gateway", process, places, behind=True)


def measure(servers: Sequence[Server], rounds: int) -> None:
    """Calls one by one with all servers in turn; then many at once, server after server, in rounds."""
    count = len(servers[0].places)
    timed = max(1, int(TIMED * count))
    warm = max(1, timed // 10)
    spent = asyncio.run(in_turn([server.places[:timed] for server in servers], 0))
    for server, calls in zip(servers, spent, strict=True):
        server.calls_ms = calls[warm * TURNS :]
    size = (count - timed) // rounds
    for number in range(rounds):
        first = timed + number * size
        for server in servers:
            before = server.cpu_s()
            wall = asyncio.run(at_once(server.places[first : first + size], CONNECTIONS))
            server.rates.append(size * TURNS / (server.cpu_s() - before))
            server.wall.append(size * TURNS / wall)
    for server in servers:
        server.weigh()


def row(server: Server, bare_p50: float) -> dict[str, float]:
    """The figures of one server."""
    p50, p99 = (float(np.percentile(server.calls_ms, share)) for share in (50, 99))
    less = bare_p50 if server.behind else 0.0
    return {
        "p50_ms": p50 - less,
        "p99_ms": p99 - less,
        "calls_per_core_s": statistics.median(server.rates),
        "calls_per_s": statistics.median(server.wall),
        "rss_mib": server.rss_mib,
    }


def missed_by(figures: dict[str, float]) -> list[str]:
    """The goals that a server doesn't meet."""
    return [
        name
        for name, goal in GOALS.items()
        if (figures[name] < goal if name == "calls_per_core_s" else figures[name] > goal)
    ]


def main() -> None:
    """Start, measure, print, write `bench/results/gateway.json`."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--sessions", type=int, default=1000)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--without-rllm", action="store_true")
    given = made.parse_args()
    servers: list[Server] = []
    worker: subprocess.Popen[str] | None = None
    engine, engine_url, _ = start("bare")  # behind rLLM's gateway
    try:
        with tempfile.TemporaryDirectory() as work:
            write_tokenizer(Path(work), [page.read_text() for page in sorted((HERE.parent / "docs").glob("*.md"))])
            process, _, places = start("gateway", "--tokenizer", work, "--sessions", str(given.sessions))
            servers.append(Server("gateway", process, places))
            process, url, _ = start("bare")
            servers.append(Server("bare HTTP", process, [Place(url, "none")] * given.sessions))
            fronted, worker = start_front(work, given.sessions)
            servers.append(fronted)
            other = None if given.without_rllm else start_rllm(engine_url, given.sessions)
            if other is None:
                print(f"{RLLM} can't be installed or started here: measured without it")
            else:
                servers.append(other)
            measure(servers, given.rounds)
    finally:
        engine.terminate()
        if worker is not None:
            worker.terminate()
        for server in servers:
            server.stop()
    bare_p50 = float(np.median(servers[1].calls_ms))
    rows = {server.name: row(server, bare_p50) for server in servers}
    print(f"\ngateway, {given.sessions:,} sessions × {TURNS} calls  (load {os.getloadavg()[0]:.1f})")
    print(f"  {'':<20} {'p50':>9} {'p99':>9} {'calls/s a core':>15} {'calls/s at 64':>14} {'memory':>11}")
    for name, figures in rows.items():
        print(
            f"  {name:<20} {figures['p50_ms']:>6.2f} ms {figures['p99_ms']:>6.2f} ms"
            f" {figures['calls_per_core_s']:>15,.0f} {figures['calls_per_s']:>14,.0f} {figures['rss_mib']:>7,.0f} MiB"
        )
    if len(rows) > 3:
        print("  rllm-model-gateway without the bare server's own median, which is behind it")
    missed = [f"{ours}: {name}" for ours in ("gateway", FRONT) for name in missed_by(rows[ours])]
    result = f"missed: {', '.join(missed)}" if missed else "met"
    print(f"  goals p50 2 ms, p99 10 ms, 500 calls/s a core, 500 MiB: {result}")
    more = {"rows": rows, "goals": GOALS, "missed": missed, "sessions": given.sessions, "turns": TURNS}
    report.write("gateway", {"load": os.getloadavg()[0], **more})


if __name__ == "__main__":
    main()
