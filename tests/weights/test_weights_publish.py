"""Publishing: what is written, and that nobody sees half of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from areal.errors import BugError, InfraError
from areal.values.policy import PolicyId
from areal.weights.manifest import Canary, Manifest
from areal.weights.publish import WeightsRef, collect, publish, versions
from areal.weights.verify import open_version, read_verified, verify_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from support.examples import examples

NUMPY = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "U8": np.uint8, "BOOL": np.bool_}
CANARY = Canary(token_ids=(1, 5, 2), logprobs=(0.0, -1.25, -0.5), tolerance=0.02)
CONFIG = {"config.json": b'{"model_type": "qwen3"}', "tokenizer.json": b"{}"}


def tensor(name: str, dtype: str = "F32", shape: tuple[int, ...] = (4, 3), seed: int = 0):
    values = np.random.default_rng(seed).integers(0, 2, size=shape) * 3
    return name, dtype, shape, values.astype(NUMPY[dtype])


def two(seed: int = 0):
    return [tensor("model.embed.weight", seed=seed), tensor("lm_head.weight", "F16", (2, 5), seed=seed)]


shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)
sources = st.lists(st.tuples(st.sampled_from(sorted(NUMPY)), shapes), min_size=1, max_size=8)


@settings(max_examples=examples(40), deadline=None)
@given(spec=sources, shard_bytes=st.integers(1, 400))
def test_the_safetensors_library_reads_what_was_given(tmp_path_factory, spec, shard_bytes):
    root = tmp_path_factory.mktemp("weights")
    tensors = [tensor(f"layer.{k}.näme", dtype, shape, seed=k) for k, (dtype, shape) in enumerate(spec)]
    ref = publish(root, PolicyId(0, 1), tensors, CANARY, CONFIG, shard_bytes=shard_bytes)

    found: dict[str, np.ndarray] = {}
    for shard in ref.path.glob("*.safetensors"):
        assert safe_open(shard, "np").metadata() == {"format": "pt"}
        found |= load_file(shard)
    assert found.keys() == {name for name, *_ in tensors}
    for name, _, shape, values in tensors:
        assert found[name].dtype == values.dtype
        assert found[name].shape == shape
        assert (found[name] == values).all()

    manifest = open_version(ref.path, ref.manifest_digest)
    verify_tensors(ref.path, manifest)
    for name, entry, view in read_verified(ref.path, manifest):
        assert bytes(view) == found[name].tobytes()
        assert entry.offset % np.dtype(NUMPY[entry.dtype]).itemsize == 0, "a loader may map it without a copy"


def test_the_manifest_tells_where_every_tensor_lies(tmp_path):
    ref = publish(tmp_path, PolicyId(42, 7), two(), CANARY, CONFIG)
    manifest = Manifest.from_bytes((ref.path / "manifest.json").read_bytes())
    assert ref.path == tmp_path / "v00000042.f7"
    assert manifest.digest() == ref.manifest_digest
    assert manifest.policy_id == PolicyId(42, 7)
    assert manifest.step == 42
    assert manifest.canary == CANARY
    dtypes = {name: entry.dtype for name, entry in manifest.tensors.items()}
    assert dtypes == {"model.embed.weight": "F32", "lm_head.weight": "F16"}
    assert {len(manifest.files[name]) for name in ("config.json", "tokenizer.json")} == {64}
    raw = (ref.path / "model.safetensors").read_bytes()
    for name, _, shape, values in two():
        entry = manifest.tensors[name]
        assert entry.shape == shape
        assert raw[entry.offset : entry.offset + entry.length] == values.tobytes()


def test_several_shards_have_an_index(tmp_path):
    ref = publish(tmp_path, PolicyId(1, 1), two(), None, CONFIG, shard_bytes=50)
    index = json.loads((ref.path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "model.embed.weight": "model-00001-of-00002.safetensors",
        "lm_head.weight": "model-00002-of-00002.safetensors",
    }
    assert index["metadata"]["total_size"] == 4 * 3 * 4 + 2 * 5 * 2
    assert {path.name for path in ref.path.iterdir()} == {
        "manifest.json", "model.safetensors.index.json", *CONFIG, *index["weight_map"].values()
    }  # fmt: skip


@pytest.mark.component
def test_transformers_loads_a_version(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config)
    tensors = [(name, "F32", tuple(value.shape), value.numpy()) for name, value in model.state_dict().items()]
    files = {"config.json": config.to_json_string(use_diff=False).encode()}
    ref = publish(tmp_path, PolicyId(3, 1), tensors, None, files, shard_bytes=4096)
    loaded = transformers.Qwen3ForCausalLM.from_pretrained(ref.path).state_dict()
    assert loaded.keys() == model.state_dict().keys()
    assert all((loaded[name].numpy() == values).all() for name, _, _, values in tensors)


def test_another_sharding_is_the_same_content(tmp_path):
    first = publish(tmp_path, PolicyId(1, 1), two(), CANARY, CONFIG)
    assert publish(tmp_path, PolicyId(1, 1), two(), CANARY, CONFIG, shard_bytes=1) == first


def test_publishing_the_same_again_returns_what_is_there(tmp_path):
    first = publish(tmp_path, PolicyId(1, 1), two(), CANARY, CONFIG)
    manifest = first.path / "manifest.json"
    before = manifest.stat()
    jittered = CANARY.model_copy(update={"logprobs": (0.0, -1.2500001, -0.5)})
    assert publish(tmp_path, PolicyId(1, 1), two(), jittered, CONFIG) == first
    after = manifest.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    assert [path.name for path in tmp_path.iterdir()] == ["v00000001.f1"]


@pytest.mark.parametrize(
    ("tensors", "files", "what"),
    [
        (two(seed=1), CONFIG, "model.embed.weight"),
        ([*two(), tensor("more")], CONFIG, "more"),
        (two()[:1], CONFIG, "lm_head.weight differs"),
        (two(), {**CONFIG, "config.json": b"{}"}, "config.json"),
    ],
)
def test_other_content_under_the_same_policy_is_refused(tmp_path, tensors, files, what):
    ref = publish(tmp_path, PolicyId(1, 1), two(), CANARY, CONFIG)
    with pytest.raises(BugError, match=what):
        publish(tmp_path, PolicyId(1, 1), tensors, CANARY, files)
    verify_tensors(ref.path, open_version(ref.path, ref.manifest_digest))
    assert [path.name for path in tmp_path.iterdir()] == ["v00000001.f1"]


@pytest.mark.parametrize("survivors", [0, 1])
def test_a_publication_that_fails_leaves_nothing(tmp_path, survivors):
    def torn():
        yield from two()[:survivors]
        raise RuntimeError("the rank that holds the next tensor died")

    with pytest.raises(RuntimeError):
        publish(tmp_path, PolicyId(1, 1), torn(), CANARY, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_a_publisher_that_is_killed_leaves_no_version(tmp_path):
    program = f"""
import os, signal
from pathlib import Path
from areal.values.policy import PolicyId
from areal.weights.publish import publish

def tensors():
    yield "a", "U8", (4,), b"aaaa"
    yield "b", "U8", (4,), b"bbbb"
    os.kill(os.getpid(), signal.SIGKILL)

publish(Path({str(tmp_path)!r}), PolicyId(1, 1), tensors(), None, {{"config.json": b"{{}}"}}, shard_bytes=4)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name[:5] for path in tmp_path.iterdir()] == [".tmp-"]
    assert versions(tmp_path) == []
    ref = publish(tmp_path, PolicyId(1, 2), two(), CANARY, CONFIG)
    collect(tmp_path, keep=set(), latest=PolicyId(1, 2))
    assert list(tmp_path.iterdir()) == [ref.path]


def test_a_version_is_never_seen_half_written(tmp_path):
    """A reader that looks all the time finds either no directory or a whole one."""
    stop, torn, seen = threading.Event(), [], 0

    def look() -> None:
        nonlocal seen
        while not stop.is_set():
            for path in tmp_path.glob("v*"):
                try:
                    verify_tensors(path, Manifest.from_bytes((path / "manifest.json").read_bytes()))
                    seen += 1
                except Exception as error:
                    torn.append(f"{path.name}: {error!r}")

    reader = threading.Thread(target=look)
    reader.start()
    for version in range(12):
        publish(tmp_path, PolicyId(version, 1), two(version), CANARY, CONFIG, shard_bytes=50)
    stop.set()
    reader.join()
    assert torn == []
    assert len(list(tmp_path.glob("v*"))) == 12


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("x", "F32", (2, 2), b"\0" * 15), "takes 16 bytes, got 15"),
        (("x", "float32", (1,), b"\0" * 4), "unknown to safetensors"),
        (("model.embed.weight", "U8", (1,), b"\0"), "given twice"),
        (("x", "F32", (2, 2), np.zeros((2, 4), np.float32)[:, ::2]), "not contiguous"),
    ],
)
def test_what_cannot_be_written_truly_is_refused(tmp_path, bad, message):
    with pytest.raises(BugError, match=message):
        publish(tmp_path, PolicyId(1, 1), [*two(), bad], CANARY, CONFIG)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["manifest.json", "../x", "a/b", "x.safetensors", ".hidden"])
def test_a_file_can_not_take_a_reserved_name(tmp_path, name):
    with pytest.raises(BugError, match="name of a file"):
        publish(tmp_path, PolicyId(1, 1), two(), CANARY, {name: b""})


def test_a_volume_that_fails_is_nobodys_bug(tmp_path):
    (tmp_path / "root").write_text("a file, not a directory")
    with pytest.raises(InfraError, match=r"publishing policy 1\.f1"):
        publish(tmp_path / "root", PolicyId(1, 1), two(), CANARY, CONFIG)


def test_the_same_weights_have_one_content_digest_under_every_fence(tmp_path):
    first = publish(tmp_path, PolicyId(4, 1), two(), CANARY, CONFIG)
    again = publish(tmp_path, PolicyId(4, 2), two(), None, CONFIG)
    assert first.manifest_digest != again.manifest_digest
    assert first.content_digest == again.content_digest == first.message().content_digest
    other = publish(tmp_path, PolicyId(4, 3), two(), CANARY, {**CONFIG, "more.json": b"{}"})
    assert other.content_digest != first.content_digest


def test_the_reference_on_the_wire():
    message = WeightsRef(PolicyId(2, 3), Path("/w/v00000002.f3"), "abc").message(rollback=True)
    assert (message.policy_id, message.path, message.manifest_digest, message.rollback) == (
        "2.f3", "/w/v00000002.f3", "abc", True
    )  # fmt: skip
