// Genkit with its plugin for compatible endpoints.

import { expect, expectCancel, load, operation, report } from './operations.mjs';

const { genkit, z } = await load('genkit');
const { openAICompatible } = await load('@genkit-ai/compat-oai');

const plugin = openAICompatible({
  name: 'agentctl', apiKey: process.env.OPENAI_API_KEY, baseURL: process.env.OPENAI_BASE_URL,
});
const ai = genkit({ plugins: [plugin] });
const weather = ai.defineTool(
  {
    name: 'get_weather',
    description: 'Return the weather of a city',
    inputSchema: z.object({ city: z.string() }),
    outputSchema: z.string(),
  },
  async ({ city }) => `${city}: sunny`,
);

operation('first_message', async () => {
  const { text } = await ai.generate({ model: 'agentctl/echo', prompt: 'hi there' });
  expect(text === 'hi there', text);
});

operation('streaming', async () => {
  const { stream } = ai.generateStream({ model: 'agentctl/echo', prompt: 'hi there' });
  let text = '';
  for await (const piece of stream) text += piece.text;
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const prompt = 'How is it in {"city": "Rome"}?';
  const { text } = await ai.generate({ model: 'agentctl/weather', prompt, tools: [weather] });
  expect(text.includes('Rome: sunny'), text);
});

operation('cancel', () =>
  expectCancel((abortSignal) =>
    ai.generate({ model: 'agentctl/hang', prompt: 'x', abortSignal }), 'hang'));

await report();
