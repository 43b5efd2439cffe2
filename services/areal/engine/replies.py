"""The JSON that `/generate` answers, in SGLang's shape."""

import time
from base64 import b64encode
from typing import Any

from areal.engine.request import Output


def generate_reply(output: Output, received_s: float, told: int = 0) -> dict[str, Any]:
    """One result object: all that there is, without the first `told` tokens. `received_s` is the clock at arrival."""
    request = output.request
    ids = output.output_ids[told:]
    prompt = len(request.input_ids)
    now = time.time()
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": output.finish,
        "prompt_tokens": prompt,
        "completion_tokens": len(output.output_ids),
        "cached_tokens": 0,
        "weight_version": output.weight_version,
        "weight_versions": [{"version": name, "start": start, "end": end} for name, start, end in output.spans],
        "num_retractions": output.retractions,
        "e2e_latency": now - received_s,
    }
    if request.return_logprob:
        meta["input_token_logprobs"] = _prompt_logprobs(output)
        meta["output_token_logprobs"] = [
            [logprob, token, None] for logprob, token in zip(output.logprobs[told:], ids, strict=True)
        ]
        meta["output_token_logprobs_length"] = len(output.output_ids)
    if output.routes:
        first = prompt - 1 + told if told else 0
        end, size = prompt - 1 + len(output.output_ids), output.route_bytes
        meta["routed_experts"] = b64encode(output.routes[first * size : end * size]).decode()
        meta["routed_experts_rows"] = end - first
    return {"text": output.text, "output_ids": ids, "meta_info": meta}


def _prompt_logprobs(output: Output) -> list[list[Any]]:
    """Triples of the prompt from `logprob_start_len` on; the first has no log-probability."""
    if output.input_logprobs is None:
        return []
    ids = output.request.input_ids[output.request.logprob_start_len :].tolist()
    return [[logprob, token, None] for logprob, token in zip([None, *output.input_logprobs], ids, strict=True)]


def error_reply(message: str) -> dict[str, Any]:
    """An error as SGLang words it."""
    return {"error": {"message": message}}
