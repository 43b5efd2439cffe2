"""Which failures of Redis are waited out, for how long, and whose fault the others are. Logins of its URL."""

from __future__ import annotations

import os

import pytest
import xxhash
from areal.errors import BugError, ConfigError, DataError, InfraError
from areal.ledger import fences, payload
from areal.ledger.connection import FIRST_PAUSE_S, LONGEST_PAUSE_S, Patience, no_retry, settings, shown, typed
from areal.ledger.evidence import Attempt, Evidence, EvidenceEntry, Exit, Precaution, precaution
from areal.v1 import common_pb2 as common
from redis import exceptions as redis_errors
from redis.retry import Retry

PASSES = (redis_errors.ConnectionError("gone"), redis_errors.BusyLoadingError("loading"), OSError("reset"))


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("error", PASSES, ids=lambda error: type(error).__name__)
def test_what_passes_is_waited_out_in_pauses_that_double_up_to_a_bound(error: Exception) -> None:
    patience = Patience("r:1", Clock(), retry_for_s=30.0)
    pauses = [patience.pause_s(error) for _ in range(8)]
    assert pauses == [min(FIRST_PAUSE_S * 2**n, LONGEST_PAUSE_S) for n in range(8)]


@pytest.mark.parametrize(("seconds", "waits"), [(0.97, True), (0.98, True), (0.99, False)])
def test_no_pause_ends_after_patience_does(seconds: float, waits: bool) -> None:
    clock = Clock()
    clock.now = 0.0
    patience = Patience("r:1", clock, retry_for_s=1.0)
    clock.now = seconds
    if waits:
        assert patience.pause_s(OSError("reset")) == FIRST_PAUSE_S
    else:
        with pytest.raises(InfraError, match="did not answer for 1 s"):
            patience.pause_s(OSError("reset"))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (redis_errors.OutOfMemoryError("full"), InfraError),
        (redis_errors.AuthenticationError("no"), ConfigError),  # a ConnectionError of redis-py's, and none that passes
        (redis_errors.NoPermissionError("no"), ConfigError),
        (redis_errors.ResponseError("what"), BugError),
        (ValueError("what"), BugError),
    ],
)
def test_what_does_not_pass_has_an_owner_at_once(error: Exception, kind: type[Exception]) -> None:
    assert type(typed(error, "r:1")) is kind
    with pytest.raises(kind) as caught:
        Patience("r:1", Clock()).pause_s(error)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("host:6379", {"host": "host", "port": 6379, "username": "me", "password": "mine"}),
        ("[::1]:6380", {"host": "::1", "port": 6380, "username": "me", "password": "mine"}),
        ("redis://you:yours@host:6381", {"host": "host", "port": 6381, "username": "you", "password": "yours"}),
        ("rediss://host", {"host": "host", "ssl": True}),
    ],
)
def test_an_address_is_a_place_and_a_url_its_own_login(address: str, place: dict[str, object]) -> None:
    given = settings(address, "me", "mine", None)
    assert {
        name: value for name, value in given.items() if name in ("host", "port", "username", "password", "ssl")
    } == place


@pytest.mark.parametrize("address", ["redis://", "http://host:1"])
def test_a_url_without_a_host_is_refused(address: str) -> None:
    with pytest.raises(ConfigError):
        settings(address, None, None, None)


def test_the_library_tries_nothing_again_by_itself() -> None:
    tried = []

    def fail() -> None:
        tried.append(1)
        raise redis_errors.ConnectionError("gone")

    with pytest.raises(redis_errors.ConnectionError):
        no_retry(Retry).call_with_retry(fail, lambda error: None)
    assert tried == [1]


def test_a_message_shows_no_login() -> None:
    assert shown("redis://you:y@urs@host:1/0?x=1") == "host:1/0"
    assert shown("host:1") == "host:1"


# ---- bounds of payloads


def sample(size: int) -> common.Sample:
    return common.Sample(sequences=[common.TokenSequence(token_ids=b"a" * size)])


def codec(of: common.Sample) -> int:
    return common.Payload.FromString(payload.encode(of)).codec


def test_a_sample_is_compressed_from_a_kilobyte_on_when_it_pays() -> None:
    short = next(size for size in range(900, 1100) if sample(size).ByteSize() == payload.COMPRESS_FROM_BYTES)
    assert [codec(sample(size)) for size in (short - 1, short)] == [common.CODEC_RAW, common.CODEC_ZSTD]
    noise = sample(0)
    noise.sequences[0].token_ids = os.urandom(4000)
    assert codec(noise) == common.CODEC_RAW


def envelope(**fields: object) -> bytes:
    whole = common.Payload.FromString(payload.encode(sample(2000)))
    for name, value in fields.items():
        setattr(whole, name, value)
    return whole.SerializeToString()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"raw_bytes": payload.MAX_RAW_BYTES + 1}, "it claims"),
        ({"raw_bytes": 5}, "damaged"),
        ({"codec": 9}, "codec 9 is unknown"),
        ({"xxh3": 1}, "its checksum differs"),
        ({"codec": common.CODEC_RAW}, "its checksum differs"),
    ],
)
def test_an_envelope_that_lies_is_damage(fields: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        payload.decode(envelope(**fields))


def test_an_envelope_without_a_body_is_damage_and_so_is_a_body_that_is_no_sample() -> None:
    with pytest.raises(DataError, match="no body"):
        payload.decode(common.Payload(codec=common.CODEC_RAW).SerializeToString())
    raw = b"\xff\xff\xff"
    sealed = common.Payload(codec=common.CODEC_RAW, xxh3=xxhash.xxh3_64_intdigest(raw), raw_bytes=3, inline=raw)
    with pytest.raises(DataError, match="it is no Sample"):
        payload.decode(sealed.SerializeToString())
    assert payload.decode_raw(sealed.SerializeToString()) == raw


# ---- fences and poison


def test_a_fence_is_taken_from_a_file_of_its_role_alone(tmp_path) -> None:
    assert fences.newest(tmp_path / "none", "trainer") == 0
    for name in ("trainer-00000003.part", "controller-00000008", "trainer-x"):
        (tmp_path / name).touch()
    assert fences.newest(tmp_path, "trainer") == 0
    assert fences.allocate(tmp_path, "trainer") == 1
    (tmp_path / "file").touch()
    with pytest.raises(InfraError, match="can't allocate a fence"):
        fences.allocate(tmp_path / "file", "trainer")


def crashed(*steps: int, groups: dict[int, int] | None = None) -> Evidence:
    tries = [Attempt(step, fence, groups or {10: 50, 11: 50}) for fence, step in enumerate(steps, 1)]
    return Evidence(attempts=tries, exits=[Exit(fence, 70, "ValueError") for fence in range(1, len(steps) + 1)])


def test_of_groups_of_one_size_the_newest_is_given_up_and_of_none_nothing() -> None:
    assert precaution(crashed(5, 5, 5, 5), 5).tombstone == 11
    evidence = crashed(5, 5, 5, 5)
    evidence.attempts = [Attempt(5, fence, {}) for fence in range(1, 5)]
    assert precaution(evidence, 5) == Precaution(5, 4, micro_batch_divisor=2)


def test_what_crashed_below_the_checkpoint_or_was_trained_later_is_over() -> None:
    assert precaution(crashed(4, 4, 4), 5) == Precaution(5, 0)
    assert precaution(crashed(5, 5, 5), 5).crashes == 3
    evidence = crashed(5, 5, 5)
    evidence.entries = [EvidenceEntry(5, 3, "trained", ())]
    assert precaution(evidence, 5) == Precaution(5, 0), "the third got through"
    evidence.entries = [EvidenceEntry(5, 2, "trained", ())]
    assert precaution(evidence, 5) == Precaution(5, 1), "only what came after it counts"
    evidence.entries = [EvidenceEntry(5, 4, "trained", ())]
    assert precaution(evidence, 5) == Precaution(5, 0)
