// Report each operation of a program as a line of JSON, as interface/operations does.

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, ...names] = process.argv.slice(2);
const resolver = createRequire(`${folder}/`);
const list = [];

export const adminKey = process.env.ADMIN_KEY;
export const baseURL = process.env.OPENAI_BASE_URL;

/** Import a package of the folder that the command line names. */
export const load = (name) => import(pathToFileURL(resolver.resolve(name)).href);

export const operation = (name, run) => list.push({ name, run, outcome: 'right' });
export const due = (name, run) => list.push({ name, run, outcome: 'due' });

export function expect(condition, seen = '') {
  if (!condition) throw new Error(`unexpected: ${JSON.stringify(seen)}`);
}

export async function expectError(promise, kind, code) {
  try {
    await promise;
  } catch (error) {
    if (error.constructor.name !== kind || (code && error.code !== code)) throw error;
    return;
  }
  throw new Error('no error');
}

export async function waitForStatus(session, status) {
  const url = `${baseURL.replace(/\/v1$/, '')}/sessions/${session}/runs`;
  const headers = { Authorization: `Bearer ${adminKey}` };
  for (const deadline = Date.now() + 30000; Date.now() < deadline; ) {
    const runs = await (await fetch(url, { headers })).json();
    if (Array.isArray(runs) && runs.at(-1)?.status === status) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`the session ${session} has no run with the status ${status}`);
}

/** Wait until a component works on a run; return the session of the run. */
export async function waitForLiveRun(component) {
  const url = `${baseURL.replace(/\/v1$/, '')}/runs?live=true&limit=1&component_id=${component}`;
  const headers = { Authorization: `Bearer ${adminKey}` };
  for (const deadline = Date.now() + 30000; Date.now() < deadline; ) {
    const { data } = await (await fetch(url, { headers })).json();
    if (data?.length) return data[0].session_id;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${component} has no run`);
}

/** Abort work of a program, in which a component answers without end; its run must end. */
export async function expectCancel(work, component = 'trickle') {
  const controller = new AbortController();
  const ended = Promise.resolve(work(controller.signal)).catch(() => {});
  const session = await waitForLiveRun(component);
  controller.abort();
  await waitForStatus(session, 'CANCELLED');
  await ended;
}

export async function report() {
  for (const { name, run, outcome } of list) {
    if (names.length && !names.includes(name)) continue;
    const line = { operation: name, outcome };
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error('not finished after 60 seconds')), 60000);
    });
    try {
      await Promise.race([run(), late]);
    } catch (error) {
      const cause = [error, error.lastError, error.cause].find((one) => one?.status ?? one?.statusCode);
      const status = cause?.status ?? cause?.statusCode ?? null;
      line.outcome = status >= 400 && status < 500 ? 'refused' : 'wrong';
      line.status = status;
      line.text = `${error.constructor.name}: ${error.message} ${cause?.responseBody ?? ''}`.slice(0, 600);
      if (!status) line.text += error.stack.split('\n').find((text) => text.includes('with_')) ?? '';
    } finally {
      clearTimeout(timer);
    }
    console.log(JSON.stringify(line));
  }
  process.exit(0);
}
