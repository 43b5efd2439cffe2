"""`areal chat`: a conversation with a model in the terminal, over the API of `areal serve`."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import httpx
import typer

from areal.cli.arguments import commands
from areal.engine.served import is_address, served
from areal.errors import ConfigError, InfraError

Messages = list[dict[str, str]]
_PATIENCE_S = 600.0  # for the first token of an answer

app = commands()


@app.command()
def chat(
    model: Annotated[str, typer.Argument(metavar="MODEL|RUN|URL", help="What `areal serve` takes, or its address.")],
    key: Annotated[str, typer.Option(help="API key of a server.", envvar="AREAL_SERVE_KEY")] = "",
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Of one answer.")] = 256,
    system: Annotated[str, typer.Option(help="What the model is told first.")] = "",
) -> None:
    """Talk to a model directory, a finished run's model or a server; the end of the input (Ctrl-D) ends it."""
    history: Messages = [{"role": "system", "content": system}] if system else []
    sampling = {"temperature": temperature, "max_tokens": max_tokens}
    with contextlib.ExitStack() as stack:
        address = model.rstrip("/") if is_address(model) else stack.enter_context(served(model))
        headers = {"authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(_PATIENCE_S, connect=10.0)
        client = stack.enter_context(httpx.Client(base_url=address, headers=headers, timeout=timeout))
        for question in _questions():
            history.append({"role": "user", "content": question})
            try:
                said = _answer(
                    client, {**sampling, "model": "any", "messages": history}, partial(print, end="", flush=True)
                )
            except httpx.HTTPError as error:
                raise InfraError(f"{address} does not answer: {error}", fix="see whether it still runs") from error
            print(flush=True)
            history.append({"role": "assistant", "content": said})


def _questions() -> Iterator[str]:
    """Lines of the input; a prompt is shown to people only."""
    asking = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(asking).strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line:
            yield line


def _answer(client: httpx.Client, body: dict[str, Any], show: Callable[[str], None]) -> str:
    """The streamed answer, shown as it comes. Raises ConfigError for what the server refuses."""
    said = ""
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        if response.status_code != 200:
            response.read()
            raise ConfigError(f"the model refuses: {_words(response)}", fix="begin a new conversation")
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise InfraError(f"the answer broke off: {event['error'].get('message')}")
            text = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if text:
                show(text)
                said += text
    return said


def _words(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"
