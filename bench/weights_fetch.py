"""Reading a version over the network beside reading it from the volume: seconds, and what every reader's checks take.

    .venv/bin/python bench/weights_fetch.py [--mebibytes 512] [--readers 1 2 4] [--json FILE]

A process of its own serves the files, as in a job; readers are threads with a channel each. "copy" is the same bytes
copied on the same disk, "verify" the checksums that every server reckons in either way: nobody is faster than these.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary
from areal.weights.mirror import VolumeMirror
from areal.weights.publish import publish
from areal.weights.verify import open_version, verify_tensors

TOKEN = "bench"
CANARY = Canary(token_ids=(1, 2), logprobs=(0.0, -1.0), tolerance=0.1)
SERVER = """
import asyncio, sys
from pathlib import Path
from areal.generation.volume import VolumeFilesService
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import ProgressCounter
from areal.observe.waits import WaitRegistry
from areal.v1 import weights_pb2_grpc as rpc

async def main():
    server = GrpcServer("weights", "bench", waits=WaitRegistry("weights"), progress=ProgressCounter())
    service = VolumeFilesService({}, Path(sys.argv[1]), RoleMetrics("weights", "bench"))
    server.add(rpc.add_VolumeFilesServicer_to_server, service, "areal.v1.VolumeFiles")
    print(await server.start(0), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fetch(port: int, root: Path, path: Path, digest: str, readers: int) -> float:
    """Seconds until all readers have the version."""
    mirrors = [VolumeMirror(root / f"reader-{index}", f"127.0.0.1:{port}", TOKEN) for index in range(readers)]

    def all_of_them() -> None:
        threads = [threading.Thread(target=mirror.bring, args=(mirror.place(path), digest)) for mirror in mirrors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    took = timed(all_of_them)
    for mirror in mirrors:
        assert open_version(mirror.place(path), digest)
        mirror.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512, help="size of the version")
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        words = np.random.default_rng(1).integers(0, 2**16, (16, options.mebibytes << 15), dtype=np.uint16)
        tensors = [(f"layer.{index}", "U16", row.shape, row) for index, row in enumerate(words)]
        ref = publish(root / "weights", PolicyId(0, 1), tensors, CANARY, {}, shard_bytes=128 << 20)
        size = sum(file.stat().st_size for file in ref.path.iterdir())
        manifest = open_version(ref.path, ref.manifest_digest)
        serving = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(root / "weights")], stdout=subprocess.PIPE, text=True
        )
        assert serving.stdout is not None
        port = int(serving.stdout.readline())
        try:
            verify_tensors(ref.path, manifest)  # the page cache is warm for everybody
            limits = {
                "verify": timed(lambda: verify_tensors(ref.path, manifest)),
                "copy": timed(lambda: shutil.copytree(ref.path, root / "copy")),
            }
            for what, took in limits.items():
                rows.append({"what": what, "readers": 1, "seconds": took, "MBps": size / took / 1e6})
            for readers in options.readers:
                took = fetch(port, root, ref.path, ref.manifest_digest, readers)
                rows.append({"what": "fetch", "readers": readers, "seconds": took, "MBps": readers * size / took / 1e6})
        finally:
            serving.kill()
            serving.wait()
    print(f"{'':8} readers  seconds   MB/s together")
    for row in rows:
        print(f"{row['what']:8} {row['readers']:7} {row['seconds']:8.2f} {row['MBps']:10.0f}")
    if options.json:
        told = {"bytes": size, "cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
