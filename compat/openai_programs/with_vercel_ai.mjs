// The AI SDK of Vercel, with three providers.

import { expect, load, operation, report, waitForStatus } from './operations.mjs';

const { generateObject, generateText, stepCountIs, streamText, tool } = await load('ai');
const { createOpenAI } = await load('@ai-sdk/openai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const { z } = await load('zod');

const openai = createOpenAI();
const compatible = createOpenAICompatible({
  name: 'agentctl',
  apiKey: process.env.OPENAI_API_KEY,
  baseURL: process.env.OPENAI_BASE_URL,
});
const providers = { responses: openai, chat: openai.chat, compatible };
const schema = z.object({ name: z.string(), age: z.number() });
const ada = '{"name": "Ada", "age": 36}';
const tools = {
  get_weather: tool({
    description: 'Get the weather of a city',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `Sunny in ${city}`,
  }),
};
const question = 'What is the weather? {"city": "Paris"}';

for (const [name, provider] of Object.entries(providers)) {
  operation(`${name}_text`, async () => {
    const { text, usage } = await generateText({ model: provider('echo'), prompt: 'hello' });
    expect(text === 'hello' && usage.totalTokens > 0, [text, usage]);
  });

  operation(`${name}_history`, async () => {
    const messages = [
      { role: 'user', content: 'one' },
      { role: 'assistant', content: 'two' },
      { role: 'user', content: 'three' },
    ];
    const { text } = await generateText({ model: provider('history'), system: 'Be brief.', messages });
    const texts = JSON.parse(text).map(([, content]) => content).filter((content) => content !== 'Be history.');
    expect(texts.join().endsWith('Be brief.,one,two,three'), texts);
  });

  operation(`${name}_stream`, async () => {
    const result = streamText({ model: provider('echo'), prompt: 'one two' });
    let text = '';
    for await (const piece of result.textStream) text += piece;
    expect(text === 'one two' && (await result.finishReason) === 'stop', text);
  });

  operation(`${name}_object`, async () => {
    const { object } = await generateObject({ model: provider('echo'), schema, prompt: ada });
    expect(object.age === 36, object);
  });

  operation(`${name}_settings`, async () => {
    const settings = { temperature: 0.2, maxOutputTokens: 500 };
    const { text } = await generateText({ model: provider('echo'), prompt: 'hello', ...settings });
    expect(text === 'hello', text);
  });

  operation(`${name}_tools`, async () => {
    const options = { tools, stopWhen: stepCountIs(3), prompt: question };
    const { text, steps } = await generateText({ model: provider('weather'), ...options });
    expect(text === 'Sunny in Paris' && steps.length === 2, [text, steps.length]);
  });

  operation(`${name}_tools_streamed`, async () => {
    const options = { tools, stopWhen: stepCountIs(3), prompt: question };
    const result = streamText({ model: provider('weather'), ...options, onError: () => {} });
    let [text, failure] = ['', null];
    for await (const part of result.fullStream) {
      if (part.type === 'text-delta') text += part.text;
      if (part.type === 'error') failure = part.error;
    }
    if (failure) throw failure;
    expect(text === 'Sunny in Paris', text);
  });

  operation(`${name}_abort_cancels_the_run`, async () => {
    const stop = new AbortController();
    const headers = { 'X-Session-ID': `vercel-${name}` };
    const result = streamText({ model: provider('trickle'), prompt: 'hello', headers, abortSignal: stop.signal });
    for await (const piece of result.textStream) if (piece) stop.abort();
    await waitForStatus(`vercel-${name}`, 'CANCELLED');
  });
}

await report();
