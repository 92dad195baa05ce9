// ChatOpenAI of LangChain for JavaScript.

import { expect, expectCancel, load, operation, report } from './operations.mjs';

const { ChatOpenAI } = await load('@langchain/openai');
const { tool } = await load('@langchain/core/tools');
const { HumanMessage } = await load('@langchain/core/messages');
const { z } = await load('zod');

const configuration = { baseURL: process.env.OPENAI_BASE_URL };
const build = (model) => new ChatOpenAI({ model, configuration, maxRetries: 0 });
const weather = tool(({ city }) => `${city}: sunny`, {
  name: 'get_weather',
  description: 'Return the weather of a city',
  schema: z.object({ city: z.string() }),
});

operation('first_message', async () => {
  const { content } = await build('echo').invoke('hi there');
  expect(content === 'hi there', content);
});

operation('streaming', async () => {
  let text = '';
  for await (const piece of await build('echo').stream('hi there')) text += piece.content;
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const model = build('weather').bindTools([weather]);
  const messages = [new HumanMessage('How is it in {"city": "Rome"}?')];
  const asked = await model.invoke(messages);
  messages.push(asked, await weather.invoke(asked.tool_calls[0]));
  const { content } = await model.invoke(messages);
  expect(content.includes('Rome: sunny'), content);
});

operation('cancel', () => expectCancel((signal) => build('hang').invoke('x', { signal }), 'hang'));

await report();
