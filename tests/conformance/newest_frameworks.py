"""Driver of an agent framework at its newest version; see `newest.py`, which it is run like.

Run by `uv run --with PACKAGES python newest_frameworks.py FRAMEWORK BASE_URL KEY`.
"""

from __future__ import annotations

import os
from typing import Any

import newest
from newest import PLAIN, SHAPED, TOOLS, add

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", AGNO_TELEMETRY="false")


def _sum() -> Any:
    return newest._sum()


class AutoGen:
    def __init__(self, url: str, key: str) -> None:
        from autogen_ext.models.openai import OpenAIChatCompletionClient

        able = dict.fromkeys(("function_calling", "json_output", "structured_output"), True)
        self.model = OpenAIChatCompletionClient(
            model="m", base_url=url, api_key=key, model_info={"vision": False, "family": "unknown", **able}
        )

    async def ask(self, text: str, **fields: Any) -> Any:
        from autogen_agentchat.agents import AssistantAgent

        return (await AssistantAgent("a", model_client=self.model, **fields).run(task=text)).messages[-1].content

    async def plain(self) -> Any:
        return await self.ask(PLAIN)

    async def stream(self) -> Any:
        return await self.ask(PLAIN, model_client_stream=True)

    async def tools(self) -> Any:
        return await self.ask(TOOLS, tools=[add], reflect_on_tool_use=True)

    async def shaped(self) -> Any:
        return (await self.ask(SHAPED, output_content_type=_sum())).sum


class DSPy:
    def __init__(self, url: str, key: str) -> None:
        import dspy

        self.dspy = dspy
        self.lm = dspy.LM("openai/m", api_base=url, api_key=key, cache=False, max_tokens=200)

    def plain(self) -> Any:
        return self.lm(PLAIN)[0]

    def shaped(self) -> Any:
        with self.dspy.context(lm=self.lm, adapter=self.dspy.JSONAdapter()):
            return self.dspy.Predict("question -> sum: int")(question=SHAPED).sum


class Agno:
    def __init__(self, url: str, key: str) -> None:
        from agno.models.openai.like import OpenAILike

        self.model = OpenAILike(id="m", base_url=url, api_key=key)

    def _ask(self, text: str, **fields: Any) -> Any:
        from agno.agent import Agent

        return Agent(model=self.model, telemetry=False, **fields).run(text).content

    def plain(self) -> Any:
        return self._ask(PLAIN)

    def stream(self) -> Any:
        from agno.agent import Agent

        return "".join(
            event.content or ""
            for event in Agent(model=self.model, telemetry=False).run(PLAIN, stream=True)
            if event.event == "RunContent"
        )

    def tools(self) -> Any:
        return self._ask(TOOLS, tools=[add])

    def shaped(self) -> Any:
        return self._ask(SHAPED, output_schema=_sum()).sum


class GoogleADK:
    def __init__(self, url: str, key: str) -> None:
        from google.adk.models.lite_llm import LiteLlm

        self.model = LiteLlm(model="openai/m", api_base=url, api_key=key)

    async def ask(self, text: str, *, stream: bool = False, **fields: Any) -> Any:
        from google.adk.agents import Agent
        from google.adk.agents.run_config import RunConfig, StreamingMode
        from google.adk.runners import InMemoryRunner
        from google.genai import types

        runner = InMemoryRunner(agent=Agent(name="a", model=self.model, **fields), app_name="app")
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        said = types.Content(role="user", parts=[types.Part(text=text)])
        mode = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
        told = ""
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=said, run_config=mode):
            if event.is_final_response() and event.content and event.content.parts and event.content.parts[0].text:
                told = event.content.parts[0].text
        return told

    async def plain(self) -> Any:
        return await self.ask(PLAIN)

    async def stream(self) -> Any:
        return await self.ask(PLAIN, stream=True)

    async def tools(self) -> Any:
        return await self.ask(TOOLS, tools=[add])

    async def shaped(self) -> Any:
        return _sum().model_validate_json(await self.ask(SHAPED, output_schema=_sum())).sum


class LlamaIndex:
    def __init__(self, url: str, key: str) -> None:
        from llama_index.llms.openai_like import OpenAILike

        self.model = OpenAILike(
            model="m", api_base=url, api_key=key, is_chat_model=True, is_function_calling_model=True,
            context_window=4096, max_tokens=256,
        )  # fmt: skip

    def plain(self) -> Any:
        return self.model.complete(PLAIN).text

    def stream(self) -> Any:
        return "".join(chunk.delta or "" for chunk in self.model.stream_complete(PLAIN))

    async def tools(self) -> Any:
        from llama_index.core.agent.workflow import FunctionAgent

        return str(await FunctionAgent(tools=[add], llm=self.model).run(TOOLS))

    def shaped(self) -> Any:
        from llama_index.core.prompts import PromptTemplate

        return self.model.structured_predict(_sum(), PromptTemplate(SHAPED)).sum


class Strands:
    def __init__(self, url: str, key: str) -> None:
        from strands.models.openai import OpenAIModel

        self.model = OpenAIModel(client_args={"api_key": key, "base_url": url}, model_id="m")

    def _ask(self, text: str, **fields: Any) -> Any:
        from strands import Agent

        return str(Agent(model=self.model, callback_handler=None, **fields)(text)).strip()

    def plain(self) -> Any:
        return self._ask(PLAIN)

    def tools(self) -> Any:
        from strands import tool

        return self._ask(TOOLS, tools=[tool(add)])

    def shaped(self) -> Any:
        from strands import Agent

        return Agent(model=self.model, callback_handler=None)(
            SHAPED, structured_output_model=_sum()
        ).structured_output.sum


class Haystack:
    def __init__(self, url: str, key: str) -> None:
        from haystack.components.generators.chat import OpenAIChatGenerator
        from haystack.utils import Secret

        self.model = OpenAIChatGenerator(api_key=Secret.from_token(key), api_base_url=url, model="m")

    def _ask(self, text: str, **fields: Any) -> Any:
        from haystack.dataclasses import ChatMessage

        return self.model.run([ChatMessage.from_user(text)], **fields)["replies"][0].text

    def plain(self) -> Any:
        return self._ask(PLAIN)

    def stream(self) -> Any:
        said: list[str] = []
        self._ask(PLAIN, streaming_callback=lambda chunk: said.append(chunk.content))
        return "".join(said)

    def tools(self) -> Any:
        from haystack.components.agents import Agent
        from haystack.dataclasses import ChatMessage
        from haystack.tools import create_tool_from_function

        agent = Agent(chat_generator=self.model, tools=[create_tool_from_function(add)])
        return agent.run(messages=[ChatMessage.from_user(TOOLS)])["last_message"].text

    def shaped(self) -> Any:
        return _sum().model_validate_json(self._ask(SHAPED, generation_kwargs={"response_format": _sum()})).sum


class CrewAI:
    def __init__(self, url: str, key: str) -> None:
        from crewai import LLM

        self.model = LLM(model="openai/m", base_url=url, api_key=key)

    def _ask(self, text: str, tools: list[Any], **fields: Any) -> Any:
        from crewai import Agent

        return Agent(role="r", goal="g", backstory="b", llm=self.model, tools=tools).kickoff(text, **fields)

    def plain(self) -> Any:
        return self.model.call(PLAIN)

    def tools(self) -> Any:
        from crewai.tools import tool

        return self._ask(TOOLS, [tool("add")(add)]).raw


class SemanticKernel:
    def __init__(self, url: str, key: str) -> None:
        import openai
        from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

        self.model = OpenAIChatCompletion("m", async_client=openai.AsyncOpenAI(base_url=url, api_key=key))

    def _agent(self, **fields: Any) -> Any:
        from semantic_kernel.agents import ChatCompletionAgent

        return ChatCompletionAgent(service=self.model, name="a", **fields)

    async def plain(self) -> Any:
        return str((await self._agent().get_response(messages=PLAIN)).message)

    async def stream(self) -> Any:
        return "".join([str(part.message) async for part in self._agent().invoke_stream(messages=PLAIN)])

    async def tools(self) -> Any:
        from semantic_kernel.functions import kernel_function

        class Sums:
            @kernel_function(name="add", description="Add two numbers.")
            def add(self, a: int, b: int) -> int:
                return a + b

        return str((await self._agent(plugins=[Sums()]).get_response(messages=TOOLS)).message)


newest.CLIENTS = {
    "autogen": AutoGen,
    "dspy": DSPy,
    "agno": Agno,
    "google-adk": GoogleADK,
    "llama-index": LlamaIndex,
    "strands": Strands,
    "haystack": Haystack,
    "crewai": CrewAI,
    "semantic-kernel": SemanticKernel,
}

if __name__ == "__main__":
    newest.main()
