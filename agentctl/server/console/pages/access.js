// Access: the identity of the caller, what its scopes open, and why a request is refused.

import { call, can, state } from "../app/api.js";
import {
  Command, Copy, cut, formatSpan, html, many, Page, printable, Problem, useAction, useCaller, useEffect,
  useNow, useState,
} from "../app/ui.js";

const RESOURCES = [
  ["agents", "read", "run"],
  ["teams", "read", "run"],
  ["workflows", "read", "run"],
  ["approvals", "read", "write"],
  ["sessions", "read", "write", "delete"],
  ["memories", "read", "write", "delete"],
  ["config", "read"],
  ["audit", "read"],
  ["service_accounts", "read", "write", "delete"],
  ["webhooks", "read", "write"],
];
const METHODS = ["GET", "POST", "PATCH", "DELETE"];
const SECRET = /[\w-]{10,}\.[\w-]{10,}\.[\w-]*/;

export default function Access({ query }) {
  const { me, claims } = useCaller();
  const now = useNow(5000);
  if (me === null) return html`<${Page} title="Access" />`;
  const left = claims?.exp ? claims.exp - now / 1000 : null;
  const kind = me.auth_mode === "none" ? "authorization is off" : claims ? "JWT" : "service account";
  return html`<${Page} title="Access">
    <section class="panel">
      <h2>Identity</h2>
      <dl class="facts">
        <dt>Principal</dt><dd><b>${printable(me.principal)}</b>${me.admin ? " (administrator)" : ""}</dd>
        <dt>Credential</dt><dd>${kind}${left === null ? "" : ` · expires in ${formatSpan(Math.max(0, left))}`}</dd>
        ${claims?.iss ? html`<dt>Issuer</dt><dd>${printable(claims.iss)}</dd>` : null}
        ${claims?.session_id ? html`<dt>Default session</dt><dd>${printable(claims.session_id)}</dd>` : null}
        <dt>Scopes</dt><dd class="chips">${me.scopes.length
          ? me.scopes.map((scope) => html`<code class="chip" key=${scope}>${printable(scope)}</code>`)
          : html`<span class="yellow">none: this token grants nothing</span>`}</dd>
      </dl>
    </section>
    <section class="panel">
      <h2>Permissions</h2>
      <div class="matrix">${RESOURCES.map(([resource, ...actions]) => html`<div key=${resource}>
        <b>${resource.replace("_", " ")}</b>
        ${actions.map((action) => html`<${May} key=${action} resource=${resource} action=${action} />`)}</div>`)}
      </div>
      ${me.operations ? html`<details><summary>${me.operations.length} operations allowed</summary>
        <p class="chips">${me.operations.map((each) => html`<code class="chip" key=${each}>${printable(each)}</code>`)}</p></details>` : null}
    </section>
    <${Explain} query=${query} admin=${me.admin} />
  <//>`;
}

function May({ resource, action }) {
  if (can(resource, action)) {
    return html`<span class="green"><span aria-hidden="true">✓</span> ${action}<span class="hidden"> allowed</span></span>`;
  }
  const form = new RegExp(`^${resource}:([^:]+):${action}$`);
  const ids = state.me.scopes.map((scope) => form.exec(scope)?.[1]).filter(Boolean);
  if (ids.length) return html`<span class="yellow">✓ ${action} <span class="dim">(${cut(ids.join(", "), 80)} only)</span></span>`;
  return html`<span class="dim"><span aria-hidden="true">✗</span> ${action} (needs <code>${resource}:${action}</code>)</span>`;
}

function Explain({ query, admin }) {
  const [method, setMethod] = useState(METHODS.includes(query.method) ? query.method : "GET");
  const [place, setPlace] = useState(query.path || "/sessions");
  const [pasted, setPasted] = useState(null);
  const [answer, setAnswer] = useState(null);
  const command = `agentctl auth explain ${method} ${place.startsWith("/") ? place.replace(SECRET, "…") : ""}`;
  const [submit, failure] = useAction(async () => {
    const body = { method, path: place };
    if (pasted !== null) body.token = pasted.trim();
    setAnswer(await call("POST", "/auth/explain", { body }));
  });
  useEffect(() => {
    if (query.path && admin) submit();
  }, []);
  return html`<section class="panel">
    <h2>Explain a decision</h2>
    <form class="row" onSubmit=${submit}>
      <select aria-label="Method" value=${method} onChange=${(event) => setMethod(event.target.value)}>
        ${METHODS.map((each) => html`<option key=${each}>${each}</option>`)}</select>
      <input class="grow mono" aria-label="Path" value=${place} data-main="true" onInput=${(event) => setPlace(event.target.value)} />
      <label><input type="radio" name="whose" checked=${pasted === null} onChange=${() => setPasted(null)} /> my token</label>
      <label><input type="radio" name="whose" disabled=${!admin} checked=${pasted !== null} onChange=${() => setPasted("")} /> another</label>
      <button type="submit" class="primary" disabled=${!admin}>Explain</button>
      ${pasted !== null ? html`<textarea rows="3" class="mono" aria-label="Token to explain" autocomplete="off" spellcheck="false" value=${pasted}
        onInput=${(event) => setPasted(event.target.value)}></textarea>` : null}
    </form>
    ${admin ? null : html`<p class="dim">Explaining here needs the admin scope. On the machine of the server this works without it:</p>`}
    <${Command} text=${command} />
    ${failure ? html`<${Problem} error=${failure} />` : null}
    ${answer && !failure ? html`<${Answer} answer=${answer} />` : null}
  </section>`;
}

function Answer({ answer }) {
  const passed = answer.steps.filter((step) => step.outcome === "passed");
  const skipped = answer.steps.filter((step) => step.outcome === "skipped").length;
  const failed = answer.steps.filter((step) => step.outcome === "failed");
  return html`<div role="status" class="explained">
    <p><b class=${answer.allowed ? "green" : "red"}>${answer.status} ${answer.allowed ? "allowed" : "refused"}</b>
      ${" "}by ${printable(answer.decided_by)} · ${printable(answer.operation || "no operation")}${answer.principal ? ` · ${printable(answer.principal)}` : ""}</p>
    ${failed.map((step) => html`<div class="bar red" key=${step.name}><b>${printable(step.name)}</b>: ${printable(step.found)}
      ${step.cause ? html`<p>${printable(step.cause)}</p>` : null}
      ${step.remedy ? html`<p><b>Fix:</b> ${printable(step.remedy)} <${Copy} text=${step.remedy} /></p>` : null}</div>`)}
    ${!answer.allowed && answer.required_scopes.length ? html`<p class="chips">Grant one of
      ${answer.required_scopes.map((scope) => html`<code class="chip" key=${scope}>${printable(scope)}</code>`)}</p>` : null}
    <details><summary>${many(passed.length, "check")} passed${skipped ? `, ${skipped} not reached` : ""}</summary>
      <dl class="facts">${passed.map((step) => html`<dt key=${step.name}><span class="green" aria-hidden="true">✓</span> ${printable(step.name)}</dt><dd>${printable(step.found)}</dd>`)}</dl></details>
  </div>`;
}
