"""Tool-calling workflow over a box: the model has the tools `bash` and `python`, and its box is judged at the end.

One conversation by OpenAI's chat API in a session of the episode, so what is trained is what was sampled. A box that
its program ended is the program's own doing and scores `ended_reward`; every other loss of a box is an infrastructure
fault, which never becomes a reward.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import httpx

from areal.clients.boxes import Box, BoxLimits
from areal.tls import https_client
from areal.values.boxes import BoxEndedError, BoxLanguage, CommandEnding, CommandResult
from areal.workflow.base import AgentSession, Engine, Outcome, RolloutWorkflow
from areal.workflow.episode import Episode

_TURNS = 8
_SHOWN = 500  # letters of an error
_ABOUT = {
    BoxLanguage.BASH: ("command", "Run a command in a bash that keeps its directory and variables between calls."),
    BoxLanguage.PYTHON: ("code", "Run statements in a Python interpreter that keeps its names between calls."),
}


class BoxToolsWorkflow(RolloutWorkflow):
    """A recipe derives from this and defines `files`, `messages` and `judge`."""

    work_s = 600.0  # of one episode's box
    command_s = 30.0
    output_bytes = 4096  # of one command, as the model reads it
    ended_reward = 0.0  # of a program that ended its own box
    limits = BoxLimits()

    @abstractmethod
    def files(self, row: dict[str, Any]) -> Mapping[str, bytes]:
        """What lies in the box at first, by relative path."""

    @abstractmethod
    def messages(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The beginning of the conversation."""

    @abstractmethod
    async def judge(self, row: dict[str, Any], box: Box) -> float:
        """The reward, by what is in the box now.

        Whatever runs in this box may lie: bring files out, and run what judges them in `box.another(…)`.
        """

    async def arun_episode(self, engine: Engine, row: dict[str, Any]) -> Episode | None:
        """One conversation; it ends with an answer that calls no tool, or after `max_turns` answers."""
        making = engine.box(work_s=self.work_s, files=self.files(row), limits=self.limits)
        async with engine.session() as session, making as box:
            try:
                await self._converse(session, row, box)
                return await session.episode(await self.judge(row, box))
            except BoxEndedError as ended:
                return await session.episode(Outcome(self.ended_reward, note=str(ended)))

    async def _converse(self, session: AgentSession, row: dict[str, Any], box: Box) -> None:
        messages = self.messages(row)
        key = {"Authorization": f"Bearer {session.api_key}"}
        # An answer may wait for weights: the group's deadline ends the episode, no time of a request.
        async with httpx.AsyncClient(verify=https_client(), timeout=None, headers=key) as http:
            for turn in range(self.max_turns or _TURNS):
                body = {"model": "policy", "messages": messages, "tools": TOOLS}
                answered = await http.post(f"{session.base_url}/chat/completions", json=body)
                if answered.status_code == httpx.codes.BAD_REQUEST and turn:
                    return  # no room for another answer: what is in the box counts
                if answered.is_error:
                    raise ValueError(f"the gateway answered {answered.status_code}: {answered.text[:_SHOWN]}")
                message = answered.json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return
                for call in message["tool_calls"]:
                    said = await self._called(box, call["function"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})

    async def _called(self, box: Box, function: Mapping[str, Any]) -> str:
        """What a call says back to the model."""
        try:
            language = BoxLanguage(function["name"])
            source = json.loads(function["arguments"])[_ABOUT[language][0]]
        except (ValueError, KeyError, TypeError):
            return f"error: call bash with a command or python with code, not {function.get('name')!r}"
        if not isinstance(source, str):
            return f"error: {_ABOUT[language][0]} must be a text"
        ran = await box.run(language, source, timeout_s=self.command_s, output_bytes=self.output_bytes)
        return told(ran, self.command_s)


def told(ran: CommandResult, command_s: float) -> str:
    """A command's result as the model reads it: output, and how it ended where that is not exit code 0."""
    text = ran.output.decode(errors="replace")
    if ran.ending is CommandEnding.TIME_LIMIT:
        end = f"[ended after {command_s:g} s]"
    elif ran.ending is CommandEnding.SIGNALED:
        end = f"[ended by signal {ran.code}]"
    else:
        end = f"[exit code {ran.code}]" if ran.code else ""
    fresh = "[what it had in memory is lost]" if ran.state_lost else ""
    return "\n".join(part for part in (text.rstrip("\n"), end, fresh) if part) or "[no output]"


def _tool(language: BoxLanguage) -> dict[str, Any]:
    argument, about = _ABOUT[language]
    properties = {argument: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return {"type": "function", "function": {"name": language.value, "description": about, "parameters": parameters}}


TOOLS = [_tool(language) for language in BoxLanguage]
"""The two tools as a chat request names them."""
