"""What a `/generate` body may say."""

from __future__ import annotations

import pytest
from areal.engine.request import BadRequest, RequestLimits, parse_generate

LIMITS = RequestLimits(vocab=64, context=160, stream_interval=4)


def parse(**body):
    return parse_generate({"input_ids": [1, 2, 3], **body}, LIMITS)


def test_a_single_prompt_and_its_defaults():
    (request,), batch = parse()
    assert not batch
    assert request.input_ids.tolist() == [1, 2, 3]
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (1.0, 1.0, -1)
    assert request.sampling.stream_interval == 4
    assert request.rid


def test_a_batch_shares_or_splits_its_fields():
    requests, batch = parse(
        input_ids=[[1], [2, 3]],
        rid=["a", "b"],
        sampling_params=[{"max_new_tokens": 3, "sampling_seed": -1}, {"max_new_tokens": 4}],
    )
    assert batch
    assert [request.rid for request in requests] == ["a", "b"]
    assert [request.sampling.max_new_tokens for request in requests] == [3, 4]
    assert requests[0].sampling.seed == 2**64 - 1


def test_requests_without_a_seed_that_share_parameters_get_different_seeds():
    requests, _ = parse(input_ids=[[1], [1], [1]], sampling_params={"max_new_tokens": 2})
    assert len({request.sampling.seed for request in requests}) == 3


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [[]]}, "at least one"),
        ({"input_ids": [1, 64]}, "token id 64 is outside the vocabulary of 64"),
        ({"input_ids": [-1]}, "token id -1"),
        ({"input_ids": [1.5, "x"]}, "integers"),
        ({"input_ids": [1.0, 2.0]}, "integers"),
        ({"input_ids": [2**70]}, "integers"),
        ({"input_ids": [1] * 40}, "context of 160"),
        ({"sampling_params": {"temprature": 1}}, "'temprature'"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"temperature": True}}, "temperature"),
        ({"sampling_params": {"top_p": 1.5}}, "top_p"),
        ({"sampling_params": {"top_p": 0}}, "top_p"),
        ({"sampling_params": {"max_new_tokens": 2.5}}, "integer"),
        ({"sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}}, "min_new_tokens"),
        ({"sampling_params": {"frequency_penalty": 0.5}}, "does not implement"),
        ({"sampling_params": {"n": 4}}, "does not implement"),
        ({"sampling_params": [{}, {}]}, "object"),
        ({"input_ids": [[1], [2]], "rid": ["a"]}, "1 entries for 2"),
        ({"logprob_start_len": 3, "sampling_params": {"max_new_tokens": 1}}, "beyond"),
    ],
)
def test_what_cannot_be_done_is_refused_in_words(body, word):
    with pytest.raises(BadRequest, match=word):
        parse(**body)


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(BadRequest, match="tokenizer"):
        parse_generate(
            {"input_ids": [1], "sampling_params": {"stop": "x", "max_new_tokens": 1}}, RequestLimits(64, 32, text=False)
        )
