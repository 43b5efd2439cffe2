"""Reading of any HTTP request: its API key and its body."""

from starlette.requests import Request

from areal.gateway.faults import CallRefusal

MAX_BODY = 16 * 1024 * 1024  # bytes of one request


def key_of(request: Request) -> str:
    """The API key of a request, as OpenAI's or as Anthropic's clients send it. Raises Refused when there is none."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" and not (key := request.headers.get("x-api-key", "")):
        raise CallRefusal(
            "give the session's API key as a bearer token, or as x-api-key", status=401, code="invalid_api_key"
        )
    return key.strip()


async def body_of(request: Request) -> bytes:
    """The body, up to MAX_BODY bytes. Raises Refused."""
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY:
            raise CallRefusal(f"the body has more than {MAX_BODY} bytes", status=413, code="too_large")
    return bytes(chunks)
