"""Two forked gloo ranks that load a model; what each held at most meanwhile. Run as a program: one JSON line a rank.

Anonymous memory is counted, sampled by a thread: pages of the files themselves are the page cache's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # imported before the fork, so that it isn't counted
from areal_trainer.engine.engine import ModelOptions, PolicyEngine
from support.forked_ranks import ended, forked, joined
from support.trainer_parts import whole_model


def anonymous_bytes() -> int:
    """Of this process, now."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


class Peak:
    """The most anonymous memory while it is open, above what there was before."""

    def __enter__(self) -> Peak:
        self._before = self.size = anonymous_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.001):
            self.size = max(self.size, anonymous_bytes())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.size = max(self.size, anonymous_bytes()) - self._before


def rank_main(rank: int, model: Path, store: Path) -> None:
    ranks = joined(rank, store, 2)
    with Peak() as peak:
        engine = PolicyEngine(model, ModelOptions(), ranks)
    shard = sum(parameter.to_local().numel() * 4 for parameter in engine._parameters.values())
    whole = dict(whole_model(model).named_parameters())
    exported = dict(engine.export())
    same = exported.keys() == whole.keys() and all(torch.equal(exported[name], whole[name]) for name in whole)
    ranks.barrier()
    line = json.dumps({"rank": rank, "peak": peak.size, "shard": shard, "same": same})
    os.write(1, f"{line}\n".encode())  # one write: both ranks have the same pipe
    ranks.close()


def main() -> None:
    model, store = Path(sys.argv[1]), Path(sys.argv[2])
    sys.exit(max(ended([forked(rank_main, rank, Path(f"{store}.error"), model, store) for rank in range(2)], 110.0)))


if __name__ == "__main__":
    assert transformers.models.llama.modeling_llama is not None
    main()
