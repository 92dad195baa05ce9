// A session as a file: the same formats as `agentctl sessions export`.

import { call, componentOf, kindOf, path, send, withQuery } from "./api.js";
import { describePhase, formatSpan, isFinal } from "./phase.js";
import { formatNumber } from "./ui.js";

const PAGE = 100;
const DELEGATIONS = ["delegate_task_to_member", "route_to_member"];
const LEVELS = 8;
const MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
const WHITE = /[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/;
const CONTROL = /[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]|\p{Cs}/gu;
const SHORT = { "\t": "\\t", "\n": "\\n", "\r": "\\r" };
const TYPES = { jsonl: "application/jsonl", json: "application/json", markdown: "text/markdown" };
const SUFFIXES = { jsonl: "jsonl", json: "json", markdown: "md" };

/** Save a session with all its runs as a file. Raises ApiError. */
export async function saveSession(id, db, form) {
  const text = form === "markdown" ? await writeMarkdown(id, db) : await writeJson(id, db, form);
  saveFile(`${id.replace(/[^\w.@-]/g, "_")}.${SUFFIXES[form]}`, [text], TYPES[form]);
}

/** Save texts as a file of the user. */
export function saveFile(name, texts, type) {
  const url = URL.createObjectURL(new Blob(texts, { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** Return the documents as the server sent them: a number keeps every digit. */
async function writeJson(id, db, form) {
  const response = await send("GET", withQuery(path`/sessions/${id}`, { db_id: db }));
  const session = await response.text();
  const { texts } = await readRuns(id, db);
  const record = `{"session":${session},"runs":[${texts.join(",")}]}`;
  return form === "json" ? `[${record}]\n` : `${record}\n`;
}

/** Read every run of a session, those of members included, oldest first. */
async function readRuns(id, db) {
  const texts = [];
  const runs = [];
  for (let after = ""; ; ) {
    const query = { db_id: db, limit: PAGE, after };
    const response = await send("GET", withQuery(path`/sessions/${id}/runs`, query));
    const text = (await response.text()).trim();
    const page = JSON.parse(text);
    if (page.length) texts.push(text.slice(1, -1));
    runs.push(...page);
    if (page.length < PAGE) return { texts, runs };
    after = page[page.length - 1].run_id;
  }
}

async function writeMarkdown(id, db) {
  const session = await call("GET", withQuery(path`/sessions/${id}`, { db_id: db }));
  const { runs } = await readRuns(id, db);
  const children = new Map();
  for (const run of runs) {
    if (run.parent_run_id == null) continue;
    children.set(run.parent_run_id, [...(children.get(run.parent_run_id) || []), run]);
  }
  const top = runs.filter((run) => run.parent_run_id == null);
  const parts = top.map((run, at) => formatRun(buildView(run, children, LEVELS), at + 1));
  return formatSession(session, top.length) + parts.join("");
}

// Texts: control characters are written out

function escape(text, kept = "") {
  return text.replace(CONTROL, (each) => {
    if (kept.includes(each)) return each;
    const code = each.charCodeAt(0);
    const hex = code.toString(16);
    return SHORT[each] || (code < 256 ? `\\x${hex.padStart(2, "0")}` : `\\u${hex.padStart(4, "0")}`);
  });
}

const line = (value) => escape(String(value ?? "").split(WHITE).filter(Boolean).join(" "));

function lines(value) {
  return escape(String(value ?? "").replace(/\r\n/g, "\n").split("\n").map(expandTabs).join("\n"), "\n\t");
}

function expandTabs(text) {
  if (!text.includes("\t")) return text;
  let out = "";
  for (const each of text) out += each === "\t" ? " ".repeat(4 - ([...out].length % 4)) : each;
  return out;
}

/** Return JSON with a space behind commas and colons. */
function spaced(value) {
  if (Array.isArray(value)) return `[${value.map(spaced).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value ?? null);
  const pairs = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${spaced(each)}`);
  return `{${pairs.join(", ")}}`;
}

function elapsed(seconds) {
  if (seconds < 0.0995) return `${Math.max(0, roundEven(seconds * 1000))} ms`;
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : formatSpan(seconds);
}

function roundEven(value) {
  const rounded = Math.round(value);
  return rounded - value === 0.5 && rounded % 2 ? rounded - 1 : rounded;
}

/** Return the seconds from one time to another, with microseconds; null if one is missing. */
function seconds(from, to) {
  const found = readSeconds(to) - readSeconds(from);
  return Number.isNaN(found) ? null : Math.max(0, found);
}

function readSeconds(time) {
  const rest = /\.\d{3}(\d{1,3})/.exec(time)?.[1] || "";
  return (Date.parse(time) * 1000 + Number(rest.padEnd(3, "0"))) / 1e6;
}

// A run as an ordered list of items

function buildView(run, children, levels) {
  const below = levels ? children.get(run.run_id) || [] : [];
  const views = below.map((each) => buildView(each, children, levels - 1));
  views.sort((a, b) => (a.run.created_at < b.run.created_at ? -1 : a.run.created_at > b.run.created_at ? 1 : 0));
  const view = { run, component: line(componentOf(run) || "run"), members: views, items: [] };
  view.items = buildItems(run, views);
  return view;
}

function buildItems(run, views) {
  const rest = [...views];
  const tools = new Map((run.tools || []).map((tool) => [String(tool.tool_call_id), tool]));
  const spans = new Map((run.spans || []).map((span) => [String(span.id), span]));
  const steps = new Map((run.spans || []).filter((span) => span.kind === "step" && span.name)
    .map((span) => [span.member_run_id, line(span.name)]));
  const items = [];
  const texts = new Set();
  const take = (view) => {
    rest.splice(rest.indexOf(view), 1);
    const label = view.run.purpose || steps.get(view.run.run_id) || "";
    const given = run.workflow_id || view.run.purpose || view.run.input === run.input;
    items.push({ type: "member", view, label, task: given ? "" : line(lines(view.run.input || "")) });
  };
  const place = (tool) => {
    const member = DELEGATIONS.includes(tool.tool_name) && findMember(rest, tool, spans);
    if (member) take(member);
    else items.push({ type: "tool", tool, run, span: spans.get(String(tool.tool_call_id)) });
  };
  if (run.reasoning_content) items.push({ type: "full", label: "Thinking", text: lines(run.reasoning_content) });
  let asked = false;
  for (const { role, content, tool_calls: calls } of run.messages || []) {
    if (role === "assistant") {
      if (content) {
        texts.add(content);
        items.push({ type: "text", text: lines(content) });
      }
      for (const made of calls || []) {
        const id = String(made.id);
        place(tools.get(id) || { tool_call_id: id, tool_name: made.name, tool_args: made.arguments });
        tools.delete(id);
      }
    } else if (role === "system" || (role === "user" && asked)) {
      items.push({ type: "full", label: line(role), text: lines(content || "") });
    }
    asked ||= role === "user";
  }
  for (const tool of tools.values()) place(tool);
  const inOrder = [...rest].sort((a, b) => Boolean(a.run.purpose) - Boolean(b.run.purpose));
  inOrder.forEach(take);
  const content = String(run.content || "");
  if (content && !texts.has(content)) items.push({ type: "text", text: lines(content) });
  return items;
}

/** Return the member that a delegation started. */
function findMember(views, tool, spans) {
  const wanted = spans.get(String(tool.tool_call_id))?.member_run_id;
  const named = views.find((view) => wanted && view.run.run_id === wanted);
  if (named) return named;
  const { task, member_id: id } = tool.tool_args || {};
  const own = views.filter((view) => !view.run.purpose && view.component === line(id));
  return own.find((view) => task == null || view.run.input === task) || own[0];
}

// Markdown

function formatSession(session, count) {
  const facts = [`session ${line(session.session_id)}`];
  if (componentOf(session)) facts.push(`${kindOf(session)} ${line(componentOf(session))}`);
  if (session.user_id) facts.push(line(session.user_id));
  facts.push(`${formatNumber(count)} run${count === 1 ? "" : "s"}`);
  const { input_tokens: input, output_tokens: output, ...metrics } = session.metrics || {};
  const total = metrics.total_tokens ?? session.total_tokens;
  if (total) {
    const both = input == null || output == null ? "" : ` (${formatNumber(input)} in, ${formatNumber(output)} out)`;
    facts.push(`${formatNumber(total)} tokens${both}`);
  }
  const head = [`# ${line(session.session_name || session.session_id)}`, "", facts.join(" · "), ""];
  for (const name of ["session_summary", "output", "metadata", "session_state"]) {
    const value = name === "session_summary" ? session[name]?.summary ?? session[name] : session[name];
    const empty = !value || (typeof value === "object" && !Object.keys(value).length);
    if (empty) continue;
    head.push(`- ${name.replace(/^session_/, "")}: ${line(typeof value === "string" ? value : JSON.stringify(value))}`);
  }
  return `${head.join("\n").trimEnd()}\n\n`;
}

function formatRun(view, number) {
  const { run } = view;
  const [day, time] = new Date(run.created_at).toISOString().split("T");
  const [year, month, date] = day.split("-").map(Number);
  const when = `, ${date} ${MONTHS[month - 1]} ${year}, UTC ${time.slice(0, 8)}`;
  const text = [
    `## ${number}. ${line(run.user_id || "user")}${when}`, "", `Run \`${line(run.run_id)}\``, "",
    ...splitLines(lines(run.input || "")).map((each) => `> ${each}`.trimEnd()),
    "", `**${view.component}** ${facts(view).join(" · ")}`, "",
    ...formatItems(view.items, 0),
    ...formatEnd(view),
  ].join("\n");
  return `${text.trimEnd()}\n\n`.replace(/\n{3,}/g, "\n\n");
}

/** Return the state of a run; the facts of one that has stopped are as of its end. */
function phaseOf(run) {
  const phase = describePhase(run);
  return phase.warning || !run.finished_at ? phase : describePhase(run, Date.parse(run.finished_at));
}

function facts(view) {
  const { run } = view;
  const phase = phaseOf(run);
  const live = run.status === "PENDING" || run.status === "RUNNING";
  const end = run.finished_at || (live ? new Date().toISOString() : null);
  const took = seconds(run.started_at || run.created_at, end);
  const total = tokens(view, "total_tokens");
  const split = ["input_tokens", "output_tokens"].map((name) => formatNumber(tokens(view, name)));
  return [
    `${phase.glyph} ${line(phase.words)}`,
    run.error?.code && line(run.error.code),
    phase.warning && `! ${phase.warning}`,
    took === null ? "" : elapsed(took),
    total && `${formatNumber(total)} token${total === 1 ? "" : "s"}${live ? " so far" : ""} (${split[0]} in, ${split[1]} out)`,
  ].filter(Boolean);
}

function tokens(view, name) {
  return view.members.reduce((sum, each) => sum + tokens(each, name), view.run.metrics?.[name] || 0);
}

function formatItems(items, level) {
  const space = "  ".repeat(level);
  return items.flatMap((item) => {
    if (item.type === "text") return indent(["", ...splitLines(item.text.trimEnd()), ""], space);
    if (item.type === "full") return indent(["", `${item.label}:`, "", ...fence(item.text), ""], space);
    if (item.type === "tool") return indent(formatTool(item), space);
    const label = item.label ? `${item.label} · ` : "";
    const head = `${space}- ${label}**${item.view.component}**${item.task ? `: ${item.task}` : ""} (${facts(item.view).join(" · ")})`;
    return [head, ...formatItems(item.view.items, level + 1), ...indent(formatEnd(item.view), `${space}  `)];
  });
}

function formatTool({ tool, span, run }) {
  const result = tool.result == null ? "" : lines(typeof tool.result === "string" ? tool.result : spaced(tool.result));
  const outcome = tool.result == null ? (isFinal(run) ? "cancelled" : "running") : tool.tool_call_error ? "failed" : "done";
  const took = span?.started_at ? seconds(span.started_at, span.finished_at || new Date().toISOString()) : null;
  const given = Object.entries(tool.tool_args || {}).map(([name, each]) => `${line(name)}=${line(spaced(each))}`);
  const text = code(`${line(tool.tool_name)}(${given.join(", ")})`);
  return [`- ${text} ${outcome}${took === null ? "" : ` · ${elapsed(took)}`}`, ...indent(["", ...fence(result), ""], "  ")];
}

function formatEnd({ run }) {
  const found = run.error ? ["", `Error: ${line(run.error.detail || "")}`] : [];
  const { sentence } = phaseOf({ ...run, error: null });
  if (!sentence) return found;
  const reason = run.cancel_reason ? ` Reason: "${line(run.cancel_reason)}"` : "";
  return [...found, "", `*${line(sentence)}.${reason}*`];
}

function longestTicks(text) {
  return Math.max(0, ...(text.match(/`+/g) || []).map((each) => each.length));
}

function code(text) {
  const ticks = "`".repeat(1 + longestTicks(text));
  const space = text.includes("`") ? " " : "";
  return ticks + space + text + space + ticks;
}

function fence(text) {
  const ticks = "`".repeat(Math.max(3, 1 + longestTicks(text)));
  return [ticks, ...splitLines(text), ticks];
}

function splitLines(text) {
  const found = text.split("\n");
  if (found[found.length - 1] === "") found.pop();
  return found;
}

const indent = (texts, space) => texts.map((each) => (space + each).trimEnd());
