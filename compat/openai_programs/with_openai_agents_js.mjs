// The Agents SDK of OpenAI for JavaScript, with its defaults: responses, and chat completions.

import { expect, expectCancel, load, operation, report } from './operations.mjs';

const { Agent, run, setOpenAIAPI, setTracingDisabled, tool } = await load('@openai/agents');
const { z } = await load('zod');

setTracingDisabled(true);
const weather = tool({
  name: 'get_weather',
  description: 'Return the weather of a city',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => `${city}: sunny`,
});
const build = (model, tools = []) => new Agent({ name: 'helper', instructions: '', model, tools });

operation('first_message', async () => {
  const { finalOutput } = await run(build('echo'), 'hi there');
  expect(finalOutput === 'hi there', finalOutput);
});

operation('streaming', async () => {
  const result = await run(build('echo'), 'hi there', { stream: true });
  let text = '';
  for await (const piece of result.toTextStream()) text += piece;
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const { finalOutput } = await run(build('weather', [weather]), 'How is it in {"city": "Rome"}?');
  expect(finalOutput.includes('Rome: sunny'), finalOutput);
});

operation('cancel', () => expectCancel((signal) => run(build('hang'), 'x', { signal }), 'hang'));

operation('chat_completions', async () => {
  setOpenAIAPI('chat_completions');
  const { finalOutput } = await run(build('weather', [weather]), 'How is it in {"city": "Rome"}?');
  expect(finalOutput.includes('Rome: sunny'), finalOutput);
});

await report();
