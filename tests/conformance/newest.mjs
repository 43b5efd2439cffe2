// Driver of JavaScript clients at their newest versions: `node newest.mjs CLIENT BASE_URL KEY`, beside their node_modules.
// Prints what each scene came to as JSON; see newest.py.

const PLAIN = "one", TOOLS = "2 and 3", SHAPED = "json of 2 and 3";
const PARAMETERS = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] };
const [name, url, key] = process.argv.slice(2);
const root = url.replace(/\/v1$/, "");
const user = (content) => [{ role: "user", content }];
const same = (...told) => {
  if (new Set(told).size !== 1) throw new Error(`they differ: ${JSON.stringify(told)}`);
  return told[0];
};

async function openai() {
  const { default: OpenAI } = await import("openai");
  const { zodResponseFormat } = await import("openai/helpers/zod");
  const { z } = await import("zod");
  const client = new OpenAI({ baseURL: url, apiKey: key });
  return {
    plain: async () =>
      same(
        (await client.chat.completions.create({ model: "m", messages: user(PLAIN) })).choices[0].message.content,
        (await client.responses.create({ model: "m", input: PLAIN })).output_text,
      ),
    stream: async () => {
      const events = client.responses.stream({ model: "m", input: PLAIN });
      for await (const _ of events);
      return same(
        (await events.finalResponse()).output_text,
        await client.chat.completions.stream({ model: "m", messages: user(PLAIN) }).finalContent(),
      );
    },
    tools: () =>
      client.chat.completions
        .runTools({
          model: "m",
          messages: user(TOOLS),
          tools: [
            {
              type: "function",
              function: { name: "add", description: "Add.", parameters: PARAMETERS, parse: JSON.parse, function: ({ a, b }) => `${a + b}` },
            },
          ],
        })
        .finalContent(),
    shaped: async () => {
      const shape = zodResponseFormat(z.object({ sum: z.number() }), "sum");
      const done = await client.chat.completions.parse({ model: "m", messages: user(SHAPED), response_format: shape });
      return done.choices[0].message.parsed.sum;
    },
  };
}

async function anthropic() {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const { betaTool } = await import("@anthropic-ai/sdk/helpers/beta/json-schema");
  const client = new Anthropic({ baseURL: root, apiKey: key });
  const fields = { model: "m", max_tokens: 256 };
  return {
    plain: async () => (await client.messages.create({ ...fields, messages: user(PLAIN) })).content[0].text,
    stream: () => client.messages.stream({ ...fields, messages: user(PLAIN) }).finalText(),
    tools: async () => {
      const tool = betaTool({ name: "add", description: "Add.", inputSchema: PARAMETERS, run: ({ a, b }) => `${a + b}` });
      return (await client.beta.messages.toolRunner({ ...fields, messages: user(TOOLS), tools: [tool] })).content[0].text;
    },
  };
}

async function ai() {
  const { generateText, streamText, tool, stepCountIs, Output } = await import("ai");
  const { createOpenAI } = await import("@ai-sdk/openai");
  const { createAnthropic } = await import("@ai-sdk/anthropic");
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  const { z } = await import("zod");
  const provider = createOpenAI({ baseURL: url, apiKey: key });
  const models = [
    provider.chat("m"),
    provider.responses("m"),
    createAnthropic({ baseURL: url, apiKey: key })("m"),
    createOpenAICompatible({ name: "here", baseURL: url, apiKey: key })("m"),
  ];
  const each = async (ask) => same(...(await models.reduce(async (told, model) => [...(await told), await ask(model)], [])));
  return {
    plain: () => each(async (model) => (await generateText({ model, prompt: PLAIN })).text),
    stream: () => each((model) => streamText({ model, prompt: PLAIN }).text),
    tools: () => {
      const sum = tool({ description: "Add.", inputSchema: z.object({ a: z.number(), b: z.number() }), execute: ({ a, b }) => `${a + b}` });
      return each(async (model) => (await generateText({ model, prompt: TOOLS, tools: { add: sum }, stopWhen: stepCountIs(3) })).text);
    },
    shaped: () =>
      each(async (model) => (await generateText({ model, prompt: SHAPED, output: Output.object({ schema: z.object({ sum: z.number() }) }) })).output.sum),
  };
}

async function langchain() {
  const { ChatOpenAI } = await import("@langchain/openai");
  const { createAgent, tool } = await import("langchain");
  const { z } = await import("zod");
  const model = new ChatOpenAI({ model: "m", apiKey: key, configuration: { baseURL: url } });
  return {
    plain: async () => (await model.invoke(PLAIN)).content,
    stream: async () => {
      let told = "";
      for await (const chunk of await model.stream(PLAIN)) told += chunk.content;
      return told;
    },
    tools: async () => {
      const sum = tool(({ a, b }) => `${a + b}`, { name: "add", description: "Add.", schema: z.object({ a: z.number(), b: z.number() }) });
      return (await createAgent({ model, tools: [sum] }).invoke({ messages: user(TOOLS) })).messages.at(-1).content;
    },
    shaped: async () => (await model.withStructuredOutput(z.object({ sum: z.number() })).invoke(SHAPED)).sum,
  };
}

async function agents() {
  const { Agent, run, tool, OpenAIChatCompletionsModel, OpenAIResponsesModel, setTracingDisabled } = await import("@openai/agents");
  const { default: OpenAI } = await import("openai");
  const { z } = await import("zod");
  setTracingDisabled(true);
  const client = new OpenAI({ baseURL: url, apiKey: key });
  const models = [new OpenAIChatCompletionsModel(client, "m"), new OpenAIResponsesModel(client, "m")];
  const ask = async (text, fields = {}) =>
    Promise.all(models.map(async (model) => (await run(new Agent({ name: "a", instructions: "s", model, ...fields }), text)).finalOutput));
  return {
    plain: async () => same(...(await ask(PLAIN))),
    tools: async () => {
      const sum = tool({ name: "add", description: "Add.", parameters: z.object({ a: z.number(), b: z.number() }), execute: async ({ a, b }) => `${a + b}` });
      return same(...(await ask(TOOLS, { tools: [sum] })));
    },
    shaped: async () => same(...(await ask(SHAPED, { outputType: z.object({ sum: z.number() }) })).map((told) => told.sum)),
  };
}

const told = {};
for (const [scene, play] of Object.entries(await { openai, anthropic, ai, langchain, agents }[name]())) {
  try {
    told[scene] = await play();
  } catch (error) {
    told[scene] = `${error.name}: ${error.message}`.slice(0, 500);
  }
}
console.log(JSON.stringify(told));
