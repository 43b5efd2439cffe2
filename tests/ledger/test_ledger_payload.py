"""A sample comes back as it was stored, or as an error."""

from __future__ import annotations

import numpy as np
import pytest
from areal.errors import DataError
from areal.ledger import payload
from areal.v1 import common_pb2 as common
from hypothesis import given
from hypothesis import strategies as st


def make(tokens: int, seed: int = 0, finish: str = "stop") -> common.Sample:
    rng = np.random.default_rng(seed)
    sequence = common.TokenSequence(
        token_ids=rng.integers(0, 50, tokens).astype("<i4").tobytes(),
        logprobs=rng.normal(size=tokens).astype("<f4").tobytes(),
        loss_mask=np.ones(tokens, "u1").tobytes(),
        spans=[common.Span(start=0, end=tokens, policy_id="3.f1", server_id="s")],
        reward=1.0,
        finish_reason=finish,
    )
    key = common.SampleKey(group=7, index=1, attempt=2)
    return common.Sample(key=key, sequences=[sequence], max_staleness=2, oldest_version=3, worker_id="w")


samples = st.builds(make, st.integers(0, 2000), st.integers(0, 2**32 - 1), st.text(max_size=8))


@given(samples)
def test_decode_inverts_encode(sample: common.Sample) -> None:
    stored = payload.encode(sample)
    assert payload.decode(stored) == sample
    assert payload.encode(payload.decode(stored)) == stored


@given(samples, st.data())
def test_a_damaged_payload_is_an_error_and_never_another_sample(sample: common.Sample, data: st.DataObject) -> None:
    stored = bytearray(payload.encode(sample))
    position = data.draw(st.integers(0, len(stored) - 1))
    stored[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert payload.decode(bytes(stored)) == sample
    except DataError:
        return


@given(samples, st.data())
def test_a_cut_payload_is_an_error(sample: common.Sample, data: st.DataObject) -> None:
    stored = payload.encode(sample)
    with pytest.raises(DataError):
        payload.decode(stored[: data.draw(st.integers(0, len(stored) - 1))])


def test_long_samples_are_compressed_and_short_ones_are_not() -> None:
    codecs = [common.Payload.FromString(payload.encode(make(tokens))).codec for tokens in (20, 4000)]
    assert codecs == [common.CODEC_RAW, common.CODEC_ZSTD]


def test_the_digest_is_of_the_sample_not_of_its_compression() -> None:
    stored = payload.encode(make(4000))
    envelope = common.Payload.FromString(stored)
    raw = make(4000).SerializeToString(deterministic=True)
    plain = common.Payload(codec=common.CODEC_RAW, xxh3=envelope.xxh3, raw_bytes=len(raw), inline=raw)
    assert payload.digest(stored) == payload.digest(plain.SerializeToString())
    assert payload.decode(plain.SerializeToString()) == make(4000)


def test_a_pointer_is_read_through_the_given_reader_only() -> None:
    raw = make(10).SerializeToString(deterministic=True)
    inline = common.Payload.FromString(payload.encode(make(10)))
    pointer = common.Payload(codec=common.CODEC_RAW, xxh3=inline.xxh3, raw_bytes=len(raw))
    pointer.segment.file = "segments/0"
    assert payload.decode(pointer.SerializeToString(), lambda _: raw) == make(10)
    with pytest.raises(DataError, match="segments/0"):
        payload.decode(pointer.SerializeToString())
