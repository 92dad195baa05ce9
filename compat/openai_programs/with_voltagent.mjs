// VoltAgent with the provider of the AI SDK for compatible endpoints.

import { expect, expectCancel, load, operation, report } from './operations.mjs';

const { Agent, createTool } = await load('@voltagent/core');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const { z } = await load('zod');

const provider = createOpenAICompatible({
  name: 'agentctl', apiKey: process.env.OPENAI_API_KEY, baseURL: process.env.OPENAI_BASE_URL,
});
const weather = createTool({
  name: 'get_weather',
  description: 'Return the weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `${city}: sunny`,
});
const build = (model, tools = []) =>
  new Agent({ name: 'helper', instructions: 'Be brief.', model: provider(model), tools });

operation('first_message', async () => {
  const { text } = await build('echo').generateText('hi there');
  expect(text === 'hi there', text);
});

operation('streaming', async () => {
  const { textStream } = await build('echo').streamText('hi there');
  let text = '';
  for await (const piece of textStream) text += piece;
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const { text } = await build('weather', [weather]).generateText('How is it in {"city": "Rome"}?');
  expect(text.includes('Rome: sunny'), text);
});

operation('cancel', () =>
  expectCancel((abortSignal) => build('hang').generateText('x', { abortSignal }), 'hang'));

await report();
