"""An agent that was written against OpenAI's chat API, trained as it is: reinforcement learning of a whole program.

    areal run examples/agent_openai.yaml

Needs the quickstart's data and model (`make quickstart` makes both). Each episode has a base URL and a key of its own;
whatever client the agent uses, what the model sampled for it is what is trained, to the token. With OpenAI's package:

    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    answer = (await client.chat.completions.create(model="policy", messages=messages)).choices[0].message
"""

SECOND_TRY = 0.5  # a right second answer earns half of what a right first one does


class SortAgent:
    """Asks for the sorted digits, and once more after a wrong answer."""

    async def run(self, data, *, base_url, api_key, http_client, **extra):
        """One episode: returns its reward."""
        messages = [{"role": "user", "content": data["prompt"]}]
        for worth in (1.0, SECOND_TRY):
            answered = await http_client.post(
                f"{base_url}/chat/completions",
                headers={"Authorization": f"Bearer {api_key}"},
                json={"model": "policy", "messages": messages},
            )
            answer = answered.raise_for_status().json()["choices"][0]["message"]
            if answer["content"].strip() == data["answer"]:
                return worth
            messages += [answer, {"role": "user", "content": data["prompt"]}]
        return 0.0
