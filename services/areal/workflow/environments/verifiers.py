"""verifiers' tasksets: each row is a task's data, and the taskset's own agent plays it against the episode's base URL.

`config: {taskset: {id: gsm8k, …}, agent: {harness: {id: bash}, …}, …}` is the block `env` of a run of verifiers, and
`path` a folder with tasksets that aren't installed. Unless the agent has a harness and a runtime, a task is asked in
this process (`Chat`), which is for tasks without tools. The reward is the trace's: the weighted sum of the task's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any

import openai
import verifiers.v1 as vf
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire

__all__ = ["Chat"]  # verifiers finds a harness by its module's

_RETRIES = 8  # a gateway that starts again takes seconds
_LOST = ("InterceptionError", "TunnelError", "SandboxError")
_SERVER_FAULT = 500
_numbers = count()


class Chat(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """One question and its answer, asked from this process; each further message of a user is asked with all before."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Mapping[str, str],
        data: Any,
    ) -> Any:
        """Ask once; what is said is in the trace, for the call goes through verifiers' own server."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        client = _client().with_options(base_url=endpoint, api_key=secret)
        await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(0, "", "")


@cache
def _client() -> openai.AsyncOpenAI:
    """One for all episodes: each of its own would load certificates anew."""
    return openai.AsyncOpenAI(base_url="http://127.0.0.1", api_key="none", max_retries=_RETRIES, timeout=None)


async def run(row: dict[str, Any], *, base_url: str, api_key: str, path: str | None = None, **config: Any) -> float:
    """One episode: its reward. Raises ConnectionError where the infrastructure is at fault, else what went wrong."""
    if path is not None and path not in sys.path:
        sys.path.append(path)
    config.pop("http_client", None)
    environment = vf.load_environment(_configured(config))
    kind = type(environment.taskset).task_type()
    task = kind(kind.data_type().model_validate(row), environment.taskset.config.task)
    key_name = f"EPISODE_API_KEY_{next(_numbers)}"  # verifiers reads keys from the environment alone
    os.environ[key_name] = api_key
    try:
        client = vf.EvalClientConfig(base_url=base_url, api_key_var=key_name)
        async with environment.serving():
            episode = await environment.run_episode(task, vf.ModelContext(model="policy", client=client))
    finally:
        del os.environ[key_name]
    if not episode.ok:
        raise _failed(episode)
    return float(sum(trace.reward for trace in episode.traces))


def _configured(config: Mapping[str, Any]) -> vf.EnvConfig:
    """The environment's config, its one agent in this process unless told otherwise."""
    agent = {"harness": {"id": __name__}, "runtime": {"type": "subprocess"}, **config.get("agent", {})}
    made = vf.resolve_env_config({**config, "agent": agent})
    if names := [name for name in agent_config_fields(made) if name != "agent"]:
        raise ValueError(f"this environment has the agents {', '.join(names)}; only one agent can be trained")
    return made


def _failed(episode: Any) -> Exception:
    """Whose fault it was: a model call or a box that was lost is tried again."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    said = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no error is recorded"
    if any(error.type in _LOST or (error.status_code or 0) >= _SERVER_FAULT for error in errors):
        return ConnectionError(said)
    return RuntimeError(said)
