"""Versions that are handed to servers in memory: what the volume gets of them, and when; what a lost memory means."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from areal.errors import DataError, InfraError
from areal.ledger.consumer import TrainerState
from areal.observe.waits import WaitRegistry
from areal.values.policy import PolicyId
from areal.weights.exports import Exports, exported_steps
from areal.weights.publish import WeightsRef, versions
from areal.weights.stage import StagingArea, memory_directory
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.host_copy import specs_of
from areal_trainer.engine.meeting import Meeting
from areal_trainer.ledger_desk import LedgerDesk
from areal_trainer.publish import publisher as module
from areal_trainer.publish.exporter import Exporter
from areal_trainer.publish.publisher import Publisher
from safetensors.torch import load_file
from support import publishing_ranks

NAME = "model.layers.0.up.weight"


class Trainer:
    """One rank that publishes in memory, and what the controller was told."""

    def __init__(self, root: Path, *, every: int = 4, exports: Exports | None = None) -> None:
        self.volume, self.memory = root / "volume", root / "memory"
        self.refs: list[WeightsRef] = []
        self._ranks = RankGroup()
        self.publisher = Publisher(
            self.memory, {}, 0, Meeting(self._ranks, "writing", 10.0), self._announce, WaitRegistry("trainer"),
            exporter=None if exports is None else Exporter(exports, self.volume, root / "model"),
            volume=self.volume, keep_every=every,
        )  # fmt: skip

    def _announce(self, reference: WeightsRef, final: bool) -> str:
        self.refs.append(reference)
        return str(reference.policy_id)

    def publish(self, version: int, *, final: bool = False) -> None:
        weight = torch.full((8, 64), float(version), dtype=torch.bfloat16)
        tensors: Any = [(NAME, weight)]
        order = self.publisher.order(PolicyId(version, 1), final=final)
        self.publisher.publish(order, tensors, specs_of(tensors), publishing_ranks.CANARY, deadline_s=30.0)

    def close(self) -> None:
        self.publisher.close()
        self._ranks.close()


@contextmanager
def trainer(root: Path, **options: Any) -> Iterator[Trainer]:
    made = Trainer(root, **options)
    try:
        yield made
    finally:
        made.close()


def kept(root: Path) -> list[int]:
    return [policy.version for policy in versions(root)]


def test_servers_read_memory_and_the_volume_gets_checkpoints_versions_and_the_last(tmp_path: Path) -> None:
    on_volume = set()
    with trainer(tmp_path) as made:
        for version in range(10):
            made.publish(version, final=version == 9)
            made.publisher.wait(30.0)
            reference = made.refs[-1]
            assert reference.path.parent == made.memory
            staged = StagingArea(tmp_path / "stage", volume=made.volume).prepare(
                reference.path, reference.manifest_digest
            )
            assert staged.path == reference.path, "nothing is copied on the way"
            assert load_file(staged.path / "model.safetensors")[NAME][0, 0] == version
            assert len(kept(made.memory)) <= 2
            on_volume |= set(kept(made.volume))
        assert kept(made.volume)[-1] == 9, "whoever waits for the last version finds it on the volume"
    assert on_volume == {0, 4, 8, 9}
    assert not made.memory.exists(), "a trainer that ends gives the memory back"


def test_a_trainer_that_is_stopped_leaves_its_newest_version_on_the_volume(tmp_path: Path) -> None:
    with trainer(tmp_path, every=100) as made:
        for version in (0, 1, 2):
            made.publish(version)
            made.publisher.wait(30.0)
        assert kept(made.volume) == [0]
        last = made.refs[-1]
    assert kept(made.volume)[-1] == 2
    staged = StagingArea(tmp_path / "stage", volume=made.volume).prepare(last.path, last.manifest_digest)
    assert staged.path == made.volume / last.path.name
    assert load_file(staged.path / "model.safetensors")[NAME][0, 0] == 2


def test_nobody_waits_for_the_volume_but_for_the_last_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, go = module.copy_version, threading.Event()

    def slow(source: Path, root: Path, policy: PolicyId) -> None:
        assert go.wait(30)
        copied(source, root, policy)

    monkeypatch.setattr(module, "copy_version", slow)
    with trainer(tmp_path) as made:
        made.publish(0)
        made.publisher.wait(30.0)
        assert (len(made.refs), kept(made.volume)) == (1, []), "the servers' turn begins now"
        go.set()
        made.publish(1)
        made.publisher.wait(30.0)
        assert kept(made.volume) == [0]
        go.clear()
        made.publish(2, final=True)
        assert not made.publisher.idle(0.3), "the final model is made of what is on the volume"
        go.set()
        made.publisher.wait(30.0)
        assert kept(made.volume)[-1] == 2


def test_a_volume_that_fails_ends_the_trainer_at_its_next_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, root: Path, policy: PolicyId) -> None:
        raise InfraError("no space left")

    with trainer(tmp_path) as made, monkeypatch.context() as patched:
        patched.setattr(module, "copy_version", full)
        made.publish(0)
        made.publisher.wait(30.0)
        made.publisher._pool.submit(int).result(30)  # its thread has tried to copy
        with pytest.raises(InfraError, match="no space left"):
            made.publish(1)
    assert kept(made.volume) == [0], "closing, it tries once more with the newest"


def test_what_is_exported_is_on_the_volume_first(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "volume").mkdir()
    exports = Exports(tmp_path / "exports", interval=3, keep=5, evaluations=tmp_path / "none.jsonl")
    with trainer(tmp_path, every=100, exports=exports) as made:
        for version in range(7):
            made.publish(version, final=version == 6)
            made.publisher.wait(30.0)
    assert exported_steps(tmp_path / "exports") == [3, 6]


def test_a_byte_that_changed_in_memory_is_found_before_an_engine_reads_it(tmp_path: Path) -> None:
    with trainer(tmp_path) as made:
        made.publish(0)
        made.publisher.wait(30.0)
        reference = made.refs[-1]
        file = reference.path / "model.safetensors"
        changed = bytearray(file.read_bytes())
        changed[-1] ^= 1
        file.chmod(0o600)
        file.write_bytes(changed)
        stage = StagingArea(tmp_path / "stage", volume=made.volume)
        with pytest.raises(DataError, match=NAME):
            stage.prepare(reference.path, reference.manifest_digest)
        with pytest.raises(DataError):
            stage.prepare(reference.path, "0" * 64)  # another version's digest
        file.write_bytes(bytes(changed[:-1]) + bytes([changed[-1] ^ 1]))
        assert stage.prepare(reference.path, reference.manifest_digest).path == reference.path


def test_a_directory_that_others_could_write_to_is_refused(tmp_path: Path) -> None:
    made = memory_directory("run", tmp_path)
    assert made.stat().st_mode & 0o777 == 0o700
    assert memory_directory("run", tmp_path) == made, "a restart finds it again"
    assert memory_directory("other", tmp_path) != made
    made.chmod(0o755)
    with pytest.raises(InfraError, match="alone"):
        memory_directory("run", tmp_path)
    made.rmdir()
    made.symlink_to(tmp_path)
    with pytest.raises(InfraError, match="alone"):
        memory_directory("run", tmp_path)


def test_a_version_that_is_lost_with_its_memory_is_handed_over_again(tmp_path: Path) -> None:
    memory, volume = tmp_path / "memory", tmp_path / "volume"
    served = LedgerDesk._served_version
    desk = SimpleNamespace(paths=SimpleNamespace(handed=memory, weights=volume), _state=TrainerState(8))
    assert served(desk, "") == -1
    assert served(desk, "10.f1") == -1, "servers can read it nowhere: this trainer's first version is due"
    (memory / "v00000010.f1").mkdir(parents=True)
    assert served(desk, "10.f1") == 10
    (memory / "v00000010.f1").rmdir()
    (volume / "v00000010.f1").mkdir(parents=True)
    assert served(desk, "10.f1") == 10
    on_volume = SimpleNamespace(paths=SimpleNamespace(handed=None, weights=volume), _state=TrainerState(8))
    assert served(on_volume, "10.f1") == 10
    assert served(on_volume, "11.f1") == -1, "the run is a copy that came without its versions"
