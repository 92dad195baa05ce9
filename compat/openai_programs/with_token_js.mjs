// Token.js with its provider for compatible endpoints.

import { expect, load, operation, report } from './operations.mjs';

const { TokenJS } = await load('token.js');
const client = new TokenJS({ baseURL: process.env.OPENAI_BASE_URL });
const ask = (model, content, more = {}) =>
  client.chat.completions.create({
    provider: 'openai-compatible', model, messages: [{ role: 'user', content }], ...more,
  });

operation('first_message', async () => {
  const { choices } = await ask('echo', 'hi there');
  expect(choices[0].message.content === 'hi there', choices);
});

operation('streaming', async () => {
  let text = '';
  for await (const { choices } of await ask('echo', 'hi there', { stream: true })) {
    text += choices[0]?.delta.content ?? '';
  }
  expect(text === 'hi there', text);
});

operation('tools', async () => {
  const parameters = { type: 'object', properties: { city: { type: 'string' } } };
  const tools = [{ type: 'function', function: { name: 'get_weather', parameters } }];
  const { choices } = await ask('weather', 'How is it in {"city": "Rome"}?', { tools });
  const [call] = choices[0].message.tool_calls;
  expect(call.function.arguments === '{"city":"Rome"}', call);
});

await report();
