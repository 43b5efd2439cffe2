"""An agent of the package openai-agents, trained as it is, in a Python that has the package.

    areal run examples/agent_sdk.yaml

Needs the quickstart's data and model, and openai-agents in .cache/agent-clients: the job file's first lines say how.
Workers load this file without the package: import it inside.
"""


class Sorter:
    """Asks once; the SDK's runner makes the call and would run tools and hand-offs."""

    async def run(self, data, *, base_url, api_key, http_client, **extra):
        """One episode: returns its reward."""
        import openai
        from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner

        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=8)
        agent = Agent(name="sorter", model=OpenAIChatCompletionsModel(model="policy", openai_client=client))
        result = await Runner.run(agent, data["prompt"], run_config=RunConfig(tracing_disabled=True))
        return float(str(result.final_output).strip() == data["answer"])
