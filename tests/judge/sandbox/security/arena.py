"""Attacks a sandbox inside an outer cell and says, of each attack, whether it won, as seen from outside.

Runs as root in namespaces, mounts and a cgroup of its own, so that what an attack does with layers switched off stays
there. Prints a line of JSON: verdicts, and what became of the neighbour and of the service.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from areal_judge.sandbox.values import MemoryBound
from sandbox.attacks.claims import ATTACKS
from sandbox.attacks.table import Attack, Seen, prepared
from sandbox.security import outside
from support.as_user import as_user

_LATE_S = 4.0  # beyond the wall limit: machines are busy; what hangs does so for 20
_MEMORY_SLACK = 72 << 20  # an interpreter, page tables, the neighbour
_CPU_SLACK_S = 1.5  # limits are whole seconds
_GRACE_S = 3.0
_QUEUES = (
    "/run/outside/queues"  # not below /dev, which is read-only here and has no directory for them on some machines
)


def main() -> None:
    told = json.loads(sys.argv[1])
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    outside.loopback_up()
    os.chmod("/tmp", 0o1777)
    os.makedirs("/run/outside/open")
    os.chmod("/run/outside", 0o755)
    outside.mount_queues(_QUEUES)
    os.chmod("/run/outside/open", 0o1777)
    print(json.dumps(Arena(told).fight()))


class Arena:
    """One service, many attacks."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._attacks = [ATTACKS[name] for name in told["attacks"]]
        self._secret = f"areal-secret-{os.urandom(8).hex()}"
        self._neighbour_secret = f"areal-secret-{os.urandom(8).hex()}"
        self._wrap = as_user([], told["uid"]) if told["uid"] else []
        self._marks = {one.name: f"ev{index:02d}{os.urandom(4).hex()}" for index, one in enumerate(self._attacks)}
        self._keys = {one.name: 0x4000000 + index for index, one in enumerate(self._attacks)}
        self._victims: dict[str, outside.Victim] = {}
        self._servers: dict[str, outside.Servers] = {}
        self._shared_file = str(told["shared_file"])
        self._each = False  # whether the memory limit is each process's
        self._memory = outside.MemoryOfAll(told["memory_group"])

    def fight(self) -> dict[str, Any]:
        for path, mode in (("/run/outside/canary", 0o644), ("/run/outside/of_root", 0o600)):
            with open(path, "w") as file:
                file.write(f"{self._secret}\n")
            os.chmod(path, mode)
        with open("/run/outside/of_service", "w"):
            os.chown("/run/outside/of_service", self._told["uid"], -1)
        general = outside.Victim.start(self._secret, self._wrap)
        for one in self._attacks:
            own = one.seen in (Seen.VICTIM, Seen.SECRET)
            self._victims[one.name] = outside.Victim.start(self._secret, self._wrap) if own else general
            self._servers[one.name] = outside.Servers(self._marks[one.name], "/run/outside")
            if one.seen is Seen.CONNECTION:
                self._servers[one.name].open()
        watch = outside.Watch(self._shared_file, list(self._marks.values()))
        try:
            with watch.on():
                return self._serve(watch)
        finally:
            for victim in (general, *self._victims.values()):
                victim.end()

    def _serve(self, watch: outside.Watch) -> dict[str, Any]:
        environment = {**os.environ, "AREAL_SECRET": self._secret, "AREAL_TOKEN": self._secret}
        argv = [sys.executable, "-m", "sandbox.security.besieged", self._secret]
        service = subprocess.Popen(
            [*self._wrap, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            open_secret = "/run/outside/canary" if self._told["uid"] else "/run/outside/of_root"
            first = {
                "tier": self._told["tier"], "off": self._told["off"], "neighbour_secret": self._neighbour_secret,
                "open_secret": open_secret, "at_once": self._told["at_once"],
            }  # fmt: skip
            service.stdin.write(json.dumps(first) + "\n")
            service.stdin.flush()
            said: dict[str, Any] = {"verdicts": {}, "ready": self._line(service)}
            several = said["ready"]["fork"]
            self._each = several and said["ready"]["memory_bound"] == MemoryBound.PROCESS
            together = [one for one in self._attacks if one.seen is not Seen.MEMORY]
            alone = [one for one in self._attacks if one.seen is Seen.MEMORY]
            for batch in (together, *([one] for one in alone)):
                before = self._memory.reset() if self._memory else 0
                for one in batch:
                    service.stdin.write(json.dumps(self._order(one, service.pid)) + "\n")
                service.stdin.flush()
                for _ in batch:
                    ended = self._line(service)
                    one = ATTACKS[ended["name"]]
                    said["verdicts"][one.name] = self._verdict(one, ended, watch, before)
            service.stdin.close()
            for line in service.stdout:
                said |= json.loads(line)
            said["exit_code"] = service.wait(20)
            return said
        finally:
            service.kill()
            service.wait()

    def _line(self, service: subprocess.Popen[str]) -> dict[str, Any]:
        assert service.stdout is not None
        line = service.stdout.readline()
        if not line:
            raise RuntimeError(f"the service ended with {service.wait(10)}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _order(self, one: Attack, service: int) -> dict[str, Any]:
        victim = self._victims[one.name]
        targets = {
            "canary": "/run/outside/canary", "canary_of_root": "/run/outside/of_root",
            "file_of_service": "/run/outside/of_service",
            "open_directory": "/run/outside/open", "queues": _QUEUES, "service": service, "victim": victim.process.pid,
            "victim_address": victim.address, "mark": self._marks[one.name], "ipc_key": self._keys[one.name],
            "shared_file": self._shared_file, **self._servers[one.name].ports,
        }  # fmt: skip
        return {
            "name": one.name, "source": prepared(one, targets), "limits": asdict(one.limits), "several": one.several,
            "keep": one.keep, "stdin": base64.b64encode(one.stdin).decode(), "file": one.file, "command": one.command,
            "as_memory": one.tool != "node",
        }  # fmt: skip

    def _verdict(self, one: Attack, ended: dict[str, Any], watch: outside.Watch, before: int) -> dict[str, Any]:
        """`won` says how it won; empty when it didn't."""
        won = self._won(one, ended, watch, before)
        text = str(ended.get("stdout", "")) + str(ended.get("stderr", "")) + str(ended.get("files", ""))
        if not won and (self._secret in text or self._neighbour_secret in text):
            won = "a secret was printed"
        return {
            "won": won, "ending": ended.get("ending"), "exit_code": ended.get("exit_code"), "error": ended["error"],
            "took_s": round(ended["took_s"], 2), "said": text[-600:],
        }  # fmt: skip

    def _won(self, one: Attack, ended: dict[str, Any], watch: outside.Watch, before: int) -> str:
        mark = self._marks[one.name]
        if ended["error"]:
            return f"the run is blamed on the machine: {ended['error']}"
        if one.never_clean and ended["ending"] == "exited" and ended["exit_code"] == 0:
            return "it ended cleanly"
        if ended["ending"] not in one.endings:
            return f"it ended by {ended['ending']}"
        if one.seen is Seen.ENDING and ended["cpu_s"] > one.limits.cpu_s + _CPU_SLACK_S:
            return f"it took {ended['cpu_s']:.1f} s of processor time"
        if ended["took_s"] - ended["setup_s"] > one.limits.wall_s + _LATE_S:
            return f"it took {ended['took_s']:.1f} s"
        if one.seen is Seen.REACHED:
            return "; ".join(line for line in ended["stdout"].splitlines() if line.startswith("REACHED"))[:300]
        if one.seen is Seen.CONNECTION and (visitors := self._servers[one.name].look()):
            return f"{visitors} visitors"
        if one.seen is Seen.VICTIM:
            return self._victims[one.name].harm()
        if one.seen in (Seen.SURVIVOR, Seen.LATE):
            until = time.monotonic() + _GRACE_S
            while (left := outside.processes_named(mark)) and time.monotonic() < until:
                time.sleep(0.02)
            most = watch.most[mark]
            if left:
                return f"{left} processes are left"
            return f"{most} processes at once" if most > one.limits.processes + 1 else ""
        if one.seen is Seen.LEFTOVER:
            library = os.path.dirname(os.__file__)
            places = ("/tmp", "/dev/shm", _QUEUES, "/run/outside/open", "/var/tmp", "/run", "/", library)
            return "; ".join(outside.leftovers(mark, self._keys[one.name], places))
        if one.seen is Seen.LOCK:
            return "a lock was held" if watch.locked else ""
        if one.seen is Seen.MEMORY and self._memory:
            taken = self._memory.peak() - before
            bound = one.bound_bytes or one.limits.memory_bytes * (one.limits.processes if self._each else 1)
            return f"{taken >> 20} MB were taken" if taken > bound + _MEMORY_SLACK else ""
        return ""


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
