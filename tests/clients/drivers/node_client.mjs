// One real client of Node in a process of its own: `node node_client.mjs NAME FOLDER`, FOLDER having node_modules in it.
//
// Reads a command a line (JSON) and answers each with a line: the text that the caller of the client got, or the error that
// it saw. The clients keep all their defaults.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [name, folder] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));

const clients = {
  async openai() {
    const module = await import(pathToFileURL(require.resolve("openai")).href);
    const OpenAI = module.OpenAI ?? module.default;
    return async ({ url, model, prompt, stream, max_tokens }) => {
      const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
      const messages = [{ role: "user", content: prompt }];
      const answer = await client.chat.completions.create({ model, messages, max_tokens, stream });
      if (!stream) return answer.choices[0].message.content;
      let text = "";
      for await (const part of answer) text += part.choices[0]?.delta?.content ?? "";
      return text;
    };
  },

  async "@anthropic-ai/sdk"() {
    const module = await import(pathToFileURL(require.resolve("@anthropic-ai/sdk")).href);
    const Anthropic = module.Anthropic ?? module.default;
    return async ({ url, model, prompt, stream, max_tokens }) => {
      const client = new Anthropic({ baseURL: url, apiKey: "any" });
      const messages = [{ role: "user", content: prompt }];
      if (!stream) return textOf(await client.messages.create({ model, messages, max_tokens }));
      const answer = client.messages.stream({ model, messages, max_tokens });
      return textOf(await answer.finalMessage());
    };
  },

  async ai() {
    const { generateText, streamText } = await import(pathToFileURL(require.resolve("ai")).href);
    const { createOpenAICompatible } = await import(pathToFileURL(require.resolve("@ai-sdk/openai-compatible")).href);
    return async ({ url, model, prompt, stream, max_tokens }) => {
      const provider = createOpenAICompatible({ name: "gateway", baseURL: `${url}/v1`, apiKey: "any" });
      const asked = { model: provider(model), prompt, maxOutputTokens: max_tokens };
      if (!stream) return (await generateText(asked)).text;
      let text = "";
      for await (const part of streamText({ ...asked, onError() {} }).fullStream) {
        if (part.type === "text-delta") text += part.text;
        if (part.type === "error") throw part.error;
      }
      return text;
    };
  },
};

const textOf = (message) => message.content.map((block) => block.text ?? block.thinking ?? "").join("");

function statusOf(error) {
  for (let at = error; at; at = at.lastError ?? at.cause) {
    const status = at.status ?? at.statusCode;
    if (typeof status === "number") return status;
  }
  return null;
}

const talk = await clients[name]();
for await (const line of createInterface({ input: process.stdin })) {
  let told;
  try {
    told = { text: await talk(JSON.parse(line)) };
  } catch (error) {
    told = { error: `${error?.constructor?.name ?? typeof error}: ${error?.message ?? JSON.stringify(error)}`.slice(0, 2000), status: statusOf(error) };
  }
  process.stdout.write(JSON.stringify(told) + "\n");
}
