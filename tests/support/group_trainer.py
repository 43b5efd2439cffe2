"""A trainer's end of the weight group as a process of its own: offers and sends versions as it is told on stdin.

`GroupTrainer` starts it and talks to it, one JSON line each way. It may be held before a broadcast, and killed there.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from areal.weights.publish import WeightsRef

TOKEN = "secret"
BUCKET_BYTES = 1 << 14


class GroupTrainer:
    """One life of the trainer. `async with` it."""

    def __init__(self, port: int, patience_s: float = 60.0) -> None:
        """`patience_s` is the deadline of every phase after the join."""
        self.address = f"127.0.0.1:{port}"
        self._argv = [sys.executable, "-m", "support.group_trainer", str(port), str(patience_s)]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> GroupTrainer:
        self._process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1]
        )
        assert await self._heard() == {"serves": True}
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL, as a lost machine."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def members(self, *servers: str) -> None:
        """Wait until exactly these servers are connected and have a group."""
        await self._say(servers=sorted(servers))
        assert await self._heard() == {"servers": sorted(servers)}

    async def hold_join(self, server: str) -> None:
        """Hold the next pair of a server where it waits for the server to join; `held` waits for that."""
        await self._say(join=f"{server} join")

    async def held(self) -> str:
        """The point at which it is held; `go` on from there."""
        return str((await self._heard())["at"])

    async def offer(self, ref: WeightsRef, hold: str = "") -> dict[str, str]:
        """Offer a version; answers the groups' names by server. One that is held answers nothing yet."""
        await self._say(offer=str(ref.path), digest=ref.manifest_digest, hold=hold)
        if hold:
            assert await self._heard() == {"at": hold}
            return {}
        return await self.offered()

    async def offered(self) -> dict[str, str]:
        """Wait for the end of `offer`."""
        return dict((await self._heard())["groups"])

    async def send(self, hold: str = "") -> None:
        """Begin to send what was offered; wait at the point `hold`."""
        await self._say(send=True, hold=hold)
        if hold:
            assert await self._heard() == {"at": hold}

    async def go(self) -> None:
        """Go on from where it is held."""
        await self._say(go=True)

    async def sent(self) -> dict[str, Any]:
        """Wait for the end of `send`: {"sent": whether, by server, "faults": phases}."""
        return await self._heard()

    async def _say(self, **order: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        await self._process.stdin.drain()

    async def _heard(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 240)
        assert line, f"the trainer ended with {await self._process.wait()}"
        heard: dict[str, Any] = json.loads(line)
        return heard


def main(port: int, patience_s: float) -> None:
    import threading
    import time

    import torch
    from areal.net.server import GrpcServer, LoopThread
    from areal.observe.waits import ProgressCounter, WaitRegistry
    from areal.v1 import weights_pb2_grpc as rpc
    from areal.weights.verify import open_version
    from areal_trainer.engine.host_copy import HostSlab, specs_of
    from areal_trainer.publish.group import Deadlines, GroupOptions, GroupSender
    from areal_trainer.publish.sender import Members
    from safetensors.torch import load_file

    held, faults, passed = [""], [], threading.Event()

    def say(**words: object) -> None:
        print(json.dumps(words), flush=True)

    def order() -> dict[str, Any]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        return dict(json.loads(line))

    def at(point: str) -> None:
        if point == held[0]:
            say(at=point)
            order()
            held[0] = ""
            passed.set()

    def seen(phase: str, taken: float) -> None:
        if phase.startswith("fault: "):
            faults.append(phase.removeprefix("fault: "))

    thread = LoopThread()
    members = Members(thread.loop)

    async def serve() -> GrpcServer:
        server = GrpcServer("trainer", TOKEN, waits=WaitRegistry("trainer"), progress=ProgressCounter())
        server.add(rpc.add_WeightGroupServicer_to_server, members, "areal.v1.WeightGroup")
        await server.start(port)
        return server

    kept = thread.call(serve(), 60.0)  # it ends when it is forgotten
    limits = Deadlines(60.0, *[patience_s] * 4)
    options = GroupOptions("127.0.0.1", bucket_bytes=BUCKET_BYTES, deadlines=limits)
    sender = GroupSender(members, options, WaitRegistry("trainer"), seen, at)
    slabs = []
    say(serves=kept is not None)
    while True:
        told = order()
        if "servers" in told:
            while sorted(sender._there()) != told["servers"]:
                time.sleep(0.02)
            say(servers=told["servers"])
        elif "join" in told:  # who is held reads the next order
            passed.clear()
            held[0] = told["join"]
            passed.wait()
        elif "offer" in told:
            faults.clear()
            held[0] = told["hold"]
            path, digest = Path(told["offer"]), told["digest"]
            manifest = open_version(path, digest)
            sender.propose(manifest.policy_id)
            sender.offer(manifest.policy_id)
            say(groups={server: pair.name for server, pair in sender._there().items()})
        else:
            held[0] = told["hold"]
            tensors = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
            slab = HostSlab("weights", specs_of(tensors.items()), torch.device("cpu"), shared=True)
            slab.fill(tensors.items())
            slabs.append(slab)
            say(sent=sender.send(manifest, digest, slab.places), faults=faults)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
