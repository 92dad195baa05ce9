// OpenAI's library for Node.

import { adminKey, due, expect, expectError, load, operation, report, waitForStatus } from './operations.mjs';

const { default: OpenAI, toFile } = await load('openai');
const { zodResponseFormat, zodTextFormat } = await load('openai/helpers/zod');
const { z } = await load('zod');

const client = new OpenAI();
const messages = [{ role: 'user', content: 'hello' }];
const ada = [{ role: 'user', content: '{"name": "Ada", "age": 36}' }];
const Person = z.object({ name: z.string(), age: z.number() });
const question = 'What is the weather? {"city": "Paris"}';

operation('models', async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  expect(ids.includes('echo') && ids.includes('crew'), ids);
});

operation('chat', async () => {
  const answer = await client.chat.completions.create({ model: 'echo', messages });
  expect(answer.choices[0].message.content === 'hello' && answer.usage.total_tokens > 0);
});

operation('chat_history', async () => {
  const { choices } = await client.chat.completions.create({ model: 'echo', messages });
  const more = [...messages, choices[0].message, { role: 'user', content: 'more' }];
  const answer = await client.chat.completions.create({ model: 'history', messages: more });
  const asked = JSON.parse(answer.choices[0].message.content).filter(([role]) => role !== 'system');
  expect(asked.map(([, text]) => text).join() === 'hello,hello,more', asked);
});

operation('chat_stream', async () => {
  const options = { stream: true, stream_options: { include_usage: true } };
  let [text, usage] = ['', null];
  for await (const chunk of await client.chat.completions.create({ model: 'echo', messages, ...options })) {
    text += chunk.choices[0]?.delta.content ?? '';
    usage = chunk.usage;
  }
  expect(text === 'hello' && usage.total_tokens > 0, [text, usage]);
});

operation('chat_stream_helper', async () => {
  const pieces = [];
  const runner = client.chat.completions.stream({ model: 'echo', messages }).on('content', (text) => pieces.push(text));
  expect((await runner.finalContent()) === 'hello' && pieces.join('') === 'hello', pieces);
});

operation('chat_parse', async () => {
  const response_format = zodResponseFormat(Person, 'person');
  const answer = await client.chat.completions.parse({ model: 'echo', messages: ada, response_format });
  expect(answer.choices[0].message.parsed.age === 36);
});

operation('chat_settings', async () => {
  const settings = { temperature: 0.2, max_completion_tokens: 500 };
  const answer = await client.chat.completions.create({ model: 'echo', messages, ...settings });
  expect(answer.choices[0].message.content === 'hello');
});

const weather = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Get the weather of a city',
    parse: JSON.parse,
    function: ({ city }) => `Sunny in ${city}`,
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
};
const asking = [{ role: 'user', content: question }];

operation('chat_run_tools', async () => {
  const runner = client.chat.completions.runTools({ model: 'weather', messages: asking, tools: [weather] });
  const content = await runner.finalContent();
  expect(content === 'Sunny in Paris', content);
});

operation('chat_run_tools_streamed', async () => {
  const runner = client.chat.completions.runTools({ model: 'weather', messages: asking, tools: [weather], stream: true });
  const content = await runner.finalContent();
  expect(content === 'Sunny in Paris', content);
});

operation('response', async () => {
  const response = await client.responses.create({ model: 'echo', input: 'hello' });
  expect(response.output_text === 'hello' && response.status === 'completed');
});

operation('response_stream', async () => {
  const types = [];
  for await (const event of client.responses.stream({ model: 'echo', input: 'a b' })) types.push(event.type);
  expect(types[0] === 'response.created' && types.at(-1) === 'response.completed', types);
});

operation('response_conversation', async () => {
  await client.responses.create({ model: 'history', input: 'one', conversation: 'node' });
  const { output_text } = await client.responses.create({ model: 'history', input: 'two', conversation: 'node' });
  expect(output_text.includes('one') && output_text.includes('two'), output_text);
});

operation('response_previous', async () => {
  const first = await client.responses.create({ model: 'history', input: 'one' });
  const second = await client.responses.create({ model: 'history', input: 'two', previous_response_id: first.id });
  expect(second.output_text.includes('one'), second.output_text);
});

operation('response_parse', async () => {
  const text = { format: zodTextFormat(Person, 'person') };
  const response = await client.responses.parse({ model: 'echo', input: ada, text });
  expect(response.output_parsed.name === 'Ada');
});

operation('response_tool_round', async () => {
  const { name, description, parameters } = weather.function;
  const tools = [{ type: 'function', name, description, parameters, strict: false }];
  const first = await client.responses.create({ model: 'weather', input: asking, tools });
  const call = first.output.find((item) => item.type === 'function_call');
  const output = weather.function.function(JSON.parse(call.arguments));
  const input = [...asking, ...first.output, { type: 'function_call_output', call_id: call.call_id, output }];
  const second = await client.responses.create({ model: 'weather', input, tools });
  expect(second.output_text === 'Sunny in Paris', second);
});

operation('files', async () => {
  const admin = new OpenAI({ apiKey: adminKey });
  const text = 'from the file of Node';
  const file = await admin.files.create({ file: await toFile(Buffer.from(text), 'note.txt'), purpose: 'user_data' });
  expect(file.filename === 'note.txt' && file.bytes === text.length, file);
  const [chatPart, input] = [{ type: 'file', file: { file_id: file.id } }, { type: 'input_file', file_id: file.id }];
  const asked = { role: 'user', content: [{ type: 'text', text: 'look' }, chatPart] };
  const { choices } = await admin.chat.completions.create({ model: 'echo', messages: [asked] });
  expect(choices[0].message.content.includes(text), choices[0].message);
  const again = await admin.files.create({ file: await toFile(Buffer.from(`${text} 2`), 'n.txt'), purpose: 'user_data' });
  const content = [{ type: 'input_text', text: 'look' }, { ...input, file_id: again.id }];
  const response = await admin.responses.create({ model: 'echo', input: [{ role: 'user', content }] });
  expect(response.output_text.includes(`${text} 2`), response.output_text);
  const downloaded = await (await admin.files.content(file.id)).text();
  expect(downloaded === text, downloaded);
});

operation('abort_cancels_the_run', async () => {
  const headers = { 'X-Session-ID': 'node-aborted' };
  const stream = await client.chat.completions.create({ model: 'trickle', messages, stream: true }, { headers });
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
  stream.controller.abort();
  await waitForStatus('node-aborted', 'CANCELLED');
});

operation('timeout_cancels_the_run', async () => {
  const options = { timeout: 1000, maxRetries: 0, headers: { 'X-Session-ID': 'node-late' } };
  const request = client.chat.completions.create({ model: 'hang', messages }, options);
  await expectError(request, 'APIConnectionTimeoutError');
  await waitForStatus('node-late', 'CANCELLED');
});

due('unknown_model', () =>
  expectError(client.chat.completions.create({ model: 'gpt-4o', messages }), 'NotFoundError', 'model_not_found'));

due('wrong_key', () => {
  const other = new OpenAI({ apiKey: 'sk-wrong' });
  return expectError(other.responses.create({ model: 'echo', input: 'a' }), 'AuthenticationError', 'invalid_api_key');
});

due('failing_model', () =>
  expectError(client.chat.completions.create({ model: 'http-500', messages }), 'InternalServerError'));

due('unknown_parameter', () =>
  expectError(client.chat.completions.create({ model: 'echo', messages, colour: 'red' }), 'BadRequestError', 'unknown_parameter'));

await report();
