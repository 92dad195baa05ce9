// Use a server with OpenAI's client for Node; print what it returned as JSON.
//   node openai_client.mjs FOLDER_OF_PACKAGES BASE_URL, with the token in OPENAI_API_KEY

import { createRequire } from 'node:module';

const [folder, baseURL] = process.argv.slice(2);
const OpenAI = createRequire(`${folder}/`)('openai');
const client = new OpenAI({ baseURL, maxRetries: 0 });
const messages = [{ role: 'user', content: 'hello' }];
const found = {};

const models = await client.models.list();
found.models = models.data.map((model) => model.id);

const plain = await client.chat.completions.create({ model: 'echo', messages });
found.plain = plain.choices[0].message.content;

const options = { stream: true, stream_options: { include_usage: true } };
found.streamed = '';
for await (const chunk of await client.chat.completions.create({ model: 'echo', messages, ...options })) {
  found.streamed += chunk.choices[0]?.delta.content ?? '';
  found.usage = chunk.usage?.total_tokens ?? null;
}

const response = await client.responses.create({ model: 'echo', input: 'hi', conversation: 'node' });
found.response = response.output_text;
found.conversation = response.conversation.id;

const stream = client.responses.stream({ model: 'echo', input: 'a b', conversation: 'node' });
const types = [];
for await (const event of stream) types.push(event.type);
found.last = types.at(-1);
found.final = (await stream.finalResponse()).output_text;

try {
  await client.chat.completions.create({ model: 'none', messages });
} catch (error) {
  found.error = [error.constructor.name, error.status, error.code];
}
try {
  await client.chat.completions.create({ model: 'echo', messages, seed: 1 });
} catch (error) {
  found.refused = [error.constructor.name, error.status, error.param];
}

const aborted = await client.chat.completions.create(
  { model: 'trickle', messages, stream: true },
  { headers: { 'X-Session-ID': 'aborted' } },
);
for await (const chunk of aborted) {
  if (chunk.choices[0].delta.content) break;
}
aborted.controller.abort();

console.log(JSON.stringify(found));
