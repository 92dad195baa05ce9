// Mastra with a model of a custom address.

import { expect, expectCancel, load, operation, report } from './operations.mjs';

const { Agent } = await load('@mastra/core/agent');
const { createTool } = await load('@mastra/core/tools');
const { z } = await load('zod');

const weather = createTool({
  id: 'get_weather',
  description: 'Return the weather of a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async (input) => `${(input.context ?? input).city}: sunny`,
});
const build = (name, tools = {}) =>
  new Agent({
    id: 'helper',
    name: 'helper',
    instructions: 'Be brief.',
    model: { id: `custom/${name}`, url: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY },
    tools,
  });

operation('first_message', async () => {
  const { text } = await build('echo').generate('hi there');
  expect(text === 'hi there', text);
});

operation('streaming', async () => {
  const result = await build('echo').stream('hi there');
  let text = '';
  for await (const piece of result.textStream) text += piece;
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const agent = build('weather', { get_weather: weather });
  const { text } = await agent.generate('How is it in {"city": "Rome"}?');
  expect(text.includes('Rome: sunny'), text);
});

operation('cancel', () =>
  expectCancel(
    async (abortSignal) => (await build('trickle').stream('x', { abortSignal })).text,
  ));

await report();
