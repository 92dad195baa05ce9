// The changes of the items of a run, server-sent events that are read with fetch: EventSource cannot
// send the Authorization header. A stream that breaks is resumed after the last event.

import {
  ApiError, can, componentOf, isFinal, kindOf, path, send, withQuery,
} from "./api.js";

const SILENCE_LIMIT = 45_000;

/** Follow a run to its end.
 *
 * Calls `onChanges` with lists of changes (docs/contract.md "Items"). Raises ApiError if the server
 * refuses the stream. A stream also ends when its run pauses: `isSettled` reads whether it has.
 */
export async function follow(run, { onChanges, isSettled, signal }) {
  let last = -1;
  let failures = 0;
  for (;;) {
    let ended = false;
    let pause = 0;
    try {
      await readOnce(run, last, signal, (events) => {
        failures = 0;
        last = events.at(-1).id;
        const changes = events.flatMap((event) => event.changes);
        ended ||= changes.some((each) => each.run_id === run.run_id && each.run && isFinal(each.run));
        onChanges(changes);
      });
      if (!ended && !signal.aborted) ended = await isSettled();
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !error.temporary) throw error;
      pause = (error.retryAfter || 0) * 1000;
    }
    if (signal.aborted || ended) return;
    failures += 1;
    await sleep(Math.max(pause, Math.min(10_000, 250 * 2 ** failures)), signal);
  }
}

async function readOnce(run, last, signal, onEvents) {
  const given = new AbortController();
  const stop = () => given.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENCE_LIMIT);
  try {
    const kinds = `${kindOf(run)}s`;
    const place = path`/${kinds}/${componentOf(run)}/runs/${run.run_id}`;
    // Readers follow the events, callers that can run only resume the stream.
    const [method, action] = can(kinds, "run", componentOf(run)) ? ["POST", "resume"] : ["GET", "events"];
    const query = { session_id: run.session_id, view: "items" };
    const response = await send(method, withQuery(`${place}/${action}`, query), {
      accept: "text/event-stream",
      headers: last >= 0 ? { "Last-Event-ID": String(last) } : {},
      signal: given.signal,
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_LIMIT);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      const events = blocks.map(parseEvent).filter(Boolean);
      if (events.length) onEvents(events);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    given.abort();
  }
}

function parseEvent(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (fields.event !== "ItemsChanged") return null;
  try {
    return { id: Number(fields.id), ...JSON.parse(fields.data) };
  } catch {
    return null;
  }
}

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
  });
}
