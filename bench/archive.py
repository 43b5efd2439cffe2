"""Copying a run to an object store and back, beside its bytes on the disk and the store's own pace.

    PYTHONPATH=tests .venv/bin/python bench/archive.py [--mebibytes 512] [--json FILE]

An S3 server on loopback. "disk" is the run's directory copied on the same disk; "store" the same bytes sent and read as
one object with obstore, which nobody is faster than; "first", "again" and "back" are the product's: a first copy, one
in which the record alone has grown, and the run fetched with all digests checked.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import obstore
from areal.object_store import ObjectStore
from areal.record import archive
from areal.record.archive import Archive
from support.s3_server import BUCKET, s3_server


def make(run_dir: Path, mebibytes: int) -> None:
    """Two checkpoints of several files, and a record of 72 MiB."""
    rng = np.random.default_rng(1)
    for at in (40, 60):
        directory = run_dir / "checkpoints" / f"step-{at:06d}.f1"
        directory.mkdir(parents=True)
        for rank in range(4):
            (directory / f"__{rank}_0.distcp").write_bytes(rng.bytes(mebibytes << 17))
        (directory / ".metadata").write_bytes(b"index %d" % at)
    for name, size in {"journal/controller.jsonl": 64 << 20, "evidence/fence-1.jsonl": 8 << 20}.items():
        (run_dir / name).parent.mkdir(parents=True)
        (run_dir / name).write_bytes(rng.bytes(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512, help="of both checkpoints together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, float | str]] = []
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder) / "s3") as server:
        os.environ.update(server.options)
        root, run_dir = Path(folder), Path(folder) / "run"
        make(run_dir, options.mebibytes)
        whole = sum(file.stat().st_size for file in run_dir.rglob("*") if file.is_file())
        store, copier = ObjectStore.connect(f"s3://{BUCKET}/jobs/team/run-1"), Archive(run_dir)
        archive.begin(store)

        def measure(what: str, size: int, work: object) -> None:
            began, used = time.perf_counter(), time.process_time()
            work()  # type: ignore[operator]
            took = time.perf_counter() - began
            rows.append({"what": what, "seconds": took, "cpu_s": time.process_time() - used, "MBps": size / took / 1e6})

        sent: list[int] = []
        data = next(run_dir.glob("checkpoints/*/__0_0.distcp"))
        measure("disk", whole, lambda: shutil.copytree(run_dir, root / "copy"))
        put = {"use_multipart": True, "chunk_size": 16 << 20, "max_concurrency": 4}
        measure("store: put", data.stat().st_size, lambda: obstore.put(store._connection, "one", data, **put))
        measure("store: get", data.stat().st_size, lambda: obstore.get(store._connection, "one").bytes())
        measure("first", whole, lambda: copier.copy(store, sent.append))
        assert sum(sent) == whole
        sent.clear()
        with (run_dir / "journal" / "controller.jsonl").open("ab") as file:
            file.write(b"{}\n")
        measure("again", whole, lambda: copier.copy(store, sent.append))
        again = sum(sent)
        measure("back", whole, lambda: archive.fetch(store, root / "back", ["."], lambda words: None))
        assert (root / "back" / "journal" / "controller.jsonl").read_bytes().endswith(b"{}\n")
    print(
        f"{'':12} seconds  processor s      MB/s   ({whole / 1e6:,.0f} MB; the second pass sent {again / 1e6:,.1f} MB)"
    )
    for row in rows:
        print(f"{row['what']:12} {row['seconds']:7.2f} {row['cpu_s']:12.2f} {row['MBps']:9.0f}")
    if options.json:
        told = {"bytes": whole, "again_bytes": again, "cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
