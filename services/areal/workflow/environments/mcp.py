"""Tools of MCP servers: the policy talks by OpenAI's chat API, and what it calls is run by the servers.

`config: {servers: [{command: [python, tools.py], env: {…}} or {url: https://…}], judge: check, system: …, max_turns: 8,
tool_timeout_s: 60}`. Each episode has connections of its own, a command a process of its own. A tool that fails, or
takes too long, says so to the policy; a server that is gone, or doesn't answer for that long when it is started, is
infrastructure's fault. The reward is what the tool `judge` answers at the end, a number, to `{row, reply}`; the policy
never sees that tool. Without one it is 1 where the last reply is the row's `answer`.
"""

from __future__ import annotations

import json
import math
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import mcp
import openai
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

_RETRIES = 8  # a gateway that starts again takes seconds
_TURNS = 8
_TOOL_S = 60.0
_SILENT = (CONNECTION_CLOSED, REQUEST_TIMEOUT)
_LOST = (openai.APIConnectionError, openai.InternalServerError, httpx2.TransportError, ConnectionError)


class Tools:
    """The tools of all servers of one episode."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._clients: dict[str, mcp.Client] = {}  # by the name of a tool
        self.described: dict[str, dict[str, Any]] = {}  # as a chat request names them

    async def add(self, client: mcp.Client) -> None:
        """All tools of a server. Raises ValueError where two have one name."""
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                if tool.name in self._clients:
                    raise ValueError(f"two servers have a tool {tool.name!r}; the policy could not tell them apart")
                self._clients[tool.name] = client
                function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
                self.described[tool.name] = {"type": "function", "function": function}
            cursor = page.next_cursor
            if cursor is None:
                return

    async def called(self, name: str, arguments: str) -> str:
        """What the policy is told of its call. Raises ConnectionError where the server is gone."""
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            return f"error: the arguments are no JSON: {error}"
        if name not in self.described or not isinstance(given, dict):
            return f"error: call one of {', '.join(sorted(self.described))} with an object of arguments"
        said, _ = await self.call(name, given)
        return said

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """A tool's text, and whether it failed. Raises ConnectionError, and KeyError for an unknown tool."""
        try:
            result = await self._clients[name].call_tool(name, arguments, read_timeout_seconds=self._timeout_s)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise ConnectionError(f"the MCP server of the tool {name} is gone: {error}") from error
            return f"error: {error}", True
        said = "\n".join(part.text for part in result.content if part.type == "text")
        return (f"error: {said}" if result.is_error else said), result.is_error


async def run(
    row: dict[str, Any],
    *,
    base_url: str,
    api_key: str,
    http_client: Any = None,
    servers: list[dict[str, Any]],
    judge: str | None = None,
    system: str | None = None,
    max_turns: int = _TURNS,
    tool_timeout_s: float = _TOOL_S,
) -> float:
    """One episode: its reward. Raises ConnectionError where the infrastructure is at fault, else what went wrong."""
    try:
        async with AsyncExitStack() as stack:
            policy = openai.AsyncOpenAI(
                base_url=base_url, api_key=api_key, http_client=http_client, max_retries=_RETRIES, timeout=None
            )
            if judge is None and "answer" not in row:
                raise ValueError("nobody judges: the row has no `answer`, and config.judge names no tool")
            tools = Tools(tool_timeout_s)
            for server in servers:
                client = mcp.Client(_server(server), read_timeout_seconds=tool_timeout_s)
                await tools.add(await stack.enter_async_context(client))
            if judge is not None and tools.described.pop(judge, None) is None:
                raise ValueError(f"no server has the tool {judge!r}, which is to judge; they have {_names(tools)}")
            reply = await _converse(policy, _messages(row, system), tools, max_turns)
            if judge is None:
                return float(reply.strip() == str(row["answer"]).strip())
            return _number(judge, *await tools.call(judge, {"row": row, "reply": reply}))
    except Exception as error:
        raise _fault(error) from error


async def _converse(policy: openai.AsyncOpenAI, messages: list[Any], tools: Tools, max_turns: int) -> str:
    """The last reply: one that calls no tool, or that of the last turn."""
    reply = ""
    offered: Any = list(tools.described.values()) or openai.omit
    for turn in range(max_turns):
        try:
            made = await policy.chat.completions.create(model="policy", messages=messages, tools=offered)
        except openai.BadRequestError:
            if turn:
                return reply  # no room for another answer
            raise
        said = made.choices[0].message.model_dump(exclude_none=True)
        reply = said.get("content", "")
        messages.append(said)
        for call in said.get("tool_calls", ()):
            text = await tools.called(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not said.get("tool_calls"):
            break
    return reply


def _server(named: dict[str, Any]) -> StdioServerParameters | str:
    match named:
        case {"url": str(url)}:
            return url
        case {"command": [str(program), *arguments]}:
            return StdioServerParameters(command=program, args=arguments, env=named.get("env"))
    raise ValueError(f"a server of config.servers has a url, or a command as a list, not {named!r}")


def _messages(row: dict[str, Any], system: str | None) -> list[Any]:
    if "messages" in row:
        said = list(row["messages"])
    else:
        said = [{"role": "user", "content": row["prompt"] if "prompt" in row else row["question"]}]
    return [{"role": "system", "content": system}, *said] if system else said


def _number(judge: str, said: str, failed: bool) -> float:
    try:
        number = math.nan if failed else float(said)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the tool {judge} is to answer a finite number, not {said[:200]!r}")
    return number


def _names(tools: Tools) -> str:
    return ", ".join(sorted(tools.described)) or "none"


def _fault(error: Exception) -> Exception:
    """The one that was raised inside of connections, which wrap it; a server that is gone or silent as lost."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, _LOST) or (isinstance(error, MCPError) and error.code in _SILENT):
        return ConnectionError(f"{type(error).__name__}: {error}")
    return error
