// Reads streams with the client of the AI SDK: stdin is [{before, text}], stdout the messages.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const packages = createRequire(`${process.argv[2]}/package.json`);
const { DefaultChatTransport, readUIMessageStream } = await import(
  pathToFileURL(packages.resolve("ai"))
);

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const read = [];
for (const { before, text } of JSON.parse(Buffer.concat(chunks))) {
  // The transport validates each chunk with the schema of the protocol.
  const transport = new DefaultChatTransport({ fetch: async () => new Response(text) });
  const stream = await transport.sendMessages({ chatId: "c", messages: [], trigger: "submit-message" });
  const errors = [];
  let newest = before;
  const onError = (error) => errors.push(error.message);
  for await (const message of readUIMessageStream({ message: before ?? undefined, stream, onError })) {
    newest = message;
  }
  read.push({ message: newest, errors });
}
console.log(JSON.stringify(read));
