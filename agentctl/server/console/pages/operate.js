// Is everything well? What the server reports about itself, with the verdicts of `agentctl doctor`.

import { mayCall, withQuery } from "../app/api.js";
import {
  Command, cut, describeOutage, formatAge, formatCost, formatNumber, formatSpan, formatTotal, html, many, Page,
  printable, toHash, useCaller, useNow, useResource,
} from "../app/ui.js";

const EVERY = 5000;
const ROWS = 10;
/** Time after which a waiting event shows that its endpoint does not answer, in ms. */
const LATE = 60_000;
const LOOKS = { ok: ["✓", "green"], note: ["!", "yellow"], wrong: ["✗", "red"] };
const EXPIRIES = [["expire_sessions", "sessions"], ["expire_approvals", "approvals"], ["expire_audit", "audit entries"]];

/** A line of a block; the verdicts are those of `agentctl doctor`. */
const line = (verdict, name, text, href) => ({ verdict, name, text, href });
const count = ({ meta }, noun) => formatTotal(meta, noun);

/** The blocks of the page: what they read, and the lines that they make of it. Callers see a block if
 * they may call `operation`, and not `unless`, which another block shows. */
const BLOCKS = [
  {
    title: "Server",
    places: () => ["/ready", "/info"],
    lines: ([ready, info]) => [
      ...Object.entries(ready.checks).map(([name, state]) =>
        line(state === "ok" ? "ok" : name === "keys" ? "note" : "wrong", name, state)),
      line(info.auth_mode === "none" ? "note" : "ok", "authorization", info.auth_mode === "none" ? "off: every caller is an administrator" : info.auth_mode),
      line("ok", "version", `agentctl ${info.version}, interface of AgentOS ${info.interface_version}`),
      line("ok", "components", ["agent", "team", "workflow"].map((kind) => many(info[`${kind}_count`], kind)).join(", "), toHash(["agents"])),
    ],
  },
  {
    title: "Workers and databases",
    operation: "get_deployment",
    places: () => ["/deployment"],
    // The name of a database stands once, before all that is said about it.
    lines: ([{ findings }]) => {
      const checks = [...new Set(findings.map(({ check }) => check))];
      return checks.flatMap((check) => findings.filter((each) => each.check === check)
        .map(({ verdict, what }, at) => line(verdict, at ? "" : check, what)));
    },
  },
  {
    title: "Databases",
    operation: "get_config",
    unless: "get_deployment",
    places: () => ["/config"],
    lines: ([config]) => config.databases.map((id) => line("ok", id, id === config.os_database ? "configured, the system database" : "configured")),
  },
  {
    title: "Runs and queue",
    operation: "get_runs",
    places: () => ["PENDING", "RUNNING", "PAUSED"].map((status) => withQuery("/runs", { status, parent: "none", limit: 1, view: "phase" })),
    lines: ([queued, running, paused]) => [
      line("ok", "queued", count(queued, "run"), toHash(["runs"], { status: "PENDING" })),
      line("ok", "running", count(running, "run"), toHash(["runs"])),
      line("ok", "paused", count(paused, "run"), toHash(["runs"], { status: "PAUSED" })),
    ],
  },
  {
    title: "Last hour",
    operation: "get_usage_overview",
    places: (now) => [withQuery("/usage/overview", { step: "hour", since: hoursAgo(now, 1) })],
    lines: ([{ total }]) => [
      line("ok", "runs ended", formatNumber(total.runs), toHash(["overview"])),
      ...total.failures.slice(0, ROWS).map(({ error_code: code, runs }) =>
        line("note", code, `${many(runs, "run")} failed`, toHash(["runs"], { all: 1, status: "ERROR" }))),
    ],
  },
  {
    title: "Approvals",
    operation: "get_approvals",
    places: () => ["/approvals?status=pending&limit=1"],
    lines: ([{ meta }], now) => [line("ok", "waiting", meta.total_count
      ? `${formatTotal(meta)}${meta.oldest_at ? `, the oldest for ${formatSpan((now - Date.parse(meta.oldest_at)) / 1000)}` : ""}` : "none", toHash(["approvals"]))],
  },
  {
    title: "Webhooks",
    operation: "get_webhooks",
    places: () => ["/webhooks", `/webhooks/deliveries?state=dead&limit=${ROWS}`],
    lines: ([webhooks, dead], now) => [
      ...webhooks.map((each) => judgeWebhook(each, now)),
      ...dead.data.map((each) => line("wrong", each.webhook_id,
        `${each.type}, ${formatAge(each.created_at, now)}: ${each.last_error ?? "not accepted"}`, toHash(["webhooks"], { state: "dead", webhook: each.webhook_id }))),
    ],
    none: "No webhooks are configured.",
  },
  {
    title: "Budgets",
    operation: "get_budgets",
    places: () => ["/budgets"],
    lines: ([budgets]) => [...budgets].sort((a, b) => b.used / b.limit - a.used / a.limit).slice(0, ROWS).map((each) =>
      line({ open: "ok", warning: "note" }[each.state] || "wrong", `${each.budget_id}${each.user_id ? ` · ${each.user_id}` : ""}`,
        `${describeAmount(each.used, each.unit)} of ${describeAmount(each.limit, each.unit)} this ${each.period} (${Math.round((100 * each.used) / each.limit)}%)`)),
    none: "No budgets are configured.",
  },
  {
    title: "Usage by user, today",
    operation: "get_usage",
    places: (now) => [withQuery("/usage", { by: "user", since: `${new Date(now).toISOString().slice(0, 10)}T00:00:00Z` })],
    lines: ([{ data }]) => [...data].sort((a, b) => b.total_tokens - a.total_tokens).slice(0, ROWS).map((each) =>
      line("ok", each.user_id ?? "no user", `${many(each.runs, "run")}, ${formatNumber(each.failed)} failed, ${many(each.total_tokens, "token")}${
        each.cost ? `, ${formatCost(each.cost)}` : ""}`, toHash(["overview"], { user: each.user_id }))),
    none: "No runs have ended today.",
  },
  {
    title: "Retention",
    operation: "get_audit",
    places: () => EXPIRIES.map(([operation]) => withQuery("/audit", { operation, limit: 1 })),
    lines: (pages, now) => pages.map(({ data: [last] }, at) => {
      const [operation, noun] = EXPIRIES[at];
      const failed = last && last.outcome !== "allowed";
      return line(failed ? "wrong" : "ok", noun, last
        ? `${formatNumber(last.count)} ${failed ? "not expired" : "expired"}, ${formatAge(last.at, now)}` : "none has expired", toHash(["audit"], { operation }));
    }),
  },
];

const describeAmount = (amount, unit) => (unit === "dollars" ? formatCost(amount) : `${formatNumber(Math.round(amount))} ${unit}`);

const hoursAgo = (now, hours) => new Date(Math.floor(now / 3_600_000 - hours) * 3_600_000).toISOString();

function judgeWebhook(webhook, now) {
  const { webhook_id: id, state, reason, waiting, dead, oldest_waiting_at: since } = webhook;
  const late = since && now - Date.parse(since) > LATE;
  const text = state === "disabled" ? `disabled: ${reason}`
    : late ? `an event has waited for ${formatSpan((now - Date.parse(since)) / 1000)}` : `${waiting} waiting, ${dead} not accepted`;
  return line(state === "disabled" || dead ? "wrong" : late ? "note" : "ok", id, text, toHash(["webhooks"], { webhook: id }));
}

export default function Operate() {
  useCaller();
  const now = useNow(1000);
  const shown = BLOCKS.filter(({ operation, unless }) => (!operation || mayCall(operation)) && !(unless && mayCall(unless)));
  // Each block has a fixed number of places, so the order of hooks does not change.
  const blocks = BLOCKS.map((block) => ({ ...block, resources: useAll(block.places(now), shown.includes(block)) }));
  const read = blocks.filter((block) => shown.some((each) => each.title === block.title)).map((block) => examine(block, now));
  const all = read.flatMap((block) => block.lines);
  const bad = ["wrong", "note"].map((verdict) => all.filter((each) => each.verdict === verdict));
  const [wrong, noted] = bad.map((lines) => lines.length);
  const words = wrong + noted ? [wrong && many(wrong, "problem"), noted && many(noted, "warning")].filter(Boolean).join(" · ") : "all checks passed";
  return html`<${Page} title="Operate" wide=${true} aside=${all.length
    ? html`<span role="status" data-verdict><${Verdict} verdict=${wrong ? "wrong" : noted ? "note" : "ok"} /> ${words}</span>` : null}>
    <div class="cards blocks">${read.map((block) => html`<section class="panel" key=${block.title} data-block=${block.title}>
      <h2>${block.title}</h2>
      ${block.lines.length || !block.isLoaded ? null : html`<p class="dim">${block.none}</p>`}
      <ul class="findings">${block.lines.map((each, at) => html`<${Finding} key=${at} ...${each} />`)}</ul>
    </section>`)}</div>
    <section class="panel"><h2>On the server host</h2>
      <p>Key, file, backup and backlog checks run on the server host:</p>
      <${Command} text="agentctl doctor --production" /></section>
  <//>`;
}

function useAll(places, allowed) {
  return places.map((place) => useResource(allowed ? place : null, { every: EVERY }));
}

/** Return a block with its lines, or with the failure of what it reads. */
function examine(block, now) {
  const failed = block.resources.find((each) => each.error)?.error;
  const isLoaded = block.resources.every((each) => each.data !== undefined);
  const lines = failed
    ? [line("wrong", "not read", failed.temporary ? describeOutage(failed) : failed.message)]
    : isLoaded ? block.lines(block.resources.map((each) => each.data), now) : [];
  return { ...block, isLoaded, lines };
}

function Verdict({ verdict }) {
  const [glyph, color] = LOOKS[verdict];
  return html`<span class=${color}><span aria-hidden="true">${glyph}</span><span class="hidden">${verdict}</span></span>`;
}

function Finding({ verdict, name, text, href }) {
  return html`<li data-finding=${verdict}><${Verdict} verdict=${verdict} />
    <span class="name" dir="auto">${href ? html`<a href=${href}>${printable(name)}</a>` : printable(name)}</span>
    <span class="what" dir="auto">${cut(text, 200)}</span></li>`;
}
