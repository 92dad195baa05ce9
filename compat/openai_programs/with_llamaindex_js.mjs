// LlamaIndex for TypeScript with its adapter for OpenAI.

import { expect, load, operation, report } from './operations.mjs';

const { OpenAI } = await load('@llamaindex/openai');
const { tool } = await load('llamaindex');
const { z } = await load('zod');

const build = (model) =>
  new OpenAI({ model, apiKey: process.env.OPENAI_API_KEY, baseURL: process.env.OPENAI_BASE_URL });
const messages = [{ role: 'user', content: 'hi there' }];
const weather = tool({
  name: 'get_weather',
  description: 'Return the weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: ({ city }) => `${city}: sunny`,
});

operation('first_message', async () => {
  const { message } = await build('echo').chat({ messages });
  expect(message.content === 'hi there', message);
});

operation('streaming', async () => {
  let text = '';
  for await (const { delta } of await build('echo').chat({ messages, stream: true })) text += delta;
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const { message } = await build('weather').chat({
    messages: [{ role: 'user', content: 'How is it in {"city": "Rome"}?' }],
    tools: [weather],
  });
  const [call] = message.options.toolCall;
  expect(call.name === 'get_weather' && JSON.stringify(call.input).includes('Rome'), message);
});

await report();
