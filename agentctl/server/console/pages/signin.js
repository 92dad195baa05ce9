// Sign in: a token is pasted or dropped, its claims are shown, and the server checks it.

import { ApiError, issuer, readClaims, signIn, startSignIn, state } from "../app/api.js";
import {
  Command, cut, formatSpan, html, printable, useAction, useEffect, useRef, useState,
} from "../app/ui.js";

export default function SignIn({ over, logo }) {
  const [token, setToken] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);

  const [submit, error, busy] = useAction(async (event) => {
    if (event.type === "click") return startSignIn();
    if (!token.trim()) throw new ApiError(401, { detail: "Paste a token first" });
    await signIn({ token: token.trim() });
    return setToken("");
  });
  const drop = async (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    setToken(file ? (await file.slice(0, 65536).text()).trim() : event.dataTransfer.getData("text"));
  };

  return html`<div class=${over ? "signin over" : "signin"}>
    <form onSubmit=${submit} onDragOver=${(event) => event.preventDefault()} onDrop=${drop}
      aria-label="Sign in">
      <h1>${logo} ${printable(state.info?.name || "agentctl")}</h1>
      ${state.signInReason ? html`<p class="bar yellow" role="status">${printable(state.signInReason)}</p>` : null}
      ${issuer ? html`<button type="button" class="primary" disabled=${busy} onClick=${submit}>Sign in with ${issuer}</button>` : null}
      <label class="field">
        <b>${issuer ? "Or a token" : "Token"}</b>
        <textarea ref=${field} name="token" value=${token} placeholder="paste, or drop a file"
          autocomplete="off" spellcheck="false" autocapitalize="off"
          onInput=${(event) => setToken(event.target.value)}
          onKeyDown=${(event) => event.key === "Enter" && submit(event)}></textarea>
      </label>
      <${Claims} token=${token} />
      ${error ? html`<${Rejected} error=${error} />` : null}
      <button type="submit" class=${issuer ? "" : "primary"} disabled=${busy}>Sign in</button>
      <p class="dim">
        The token stays in this tab: in its memory and, for a reload, in a cookie that no script can
        read. To get one, run:
      </p>
      <${Command} text="agentctl token mint --sub me --scope user" />
    </form>
  </div>`;
}

function Claims({ token }) {
  if (!token.trim()) return null;
  const claims = readClaims(token);
  if (claims === null) {
    const account = /^[a-z][a-z0-9]*_pat_\w+$/.test(token.trim());
    return html`<p class="dim">${account ? "The token of a service account" : "This is not a JWT"}</p>`;
  }
  const left = typeof claims.exp === "number" ? claims.exp - Date.now() / 1000 : null;
  const scopes = Array.isArray(claims.scopes) ? claims.scopes : [];
  return html`<div role="status">
    <p>
      <b>${cut(claims.sub ?? "no subject", 80)}</b> ·${" "}
      ${left === null
        ? "never expires"
        : left > 0
          ? `expires in ${formatSpan(left)}`
          : html`<span class="error">expired ${formatSpan(-left)} ago</span>`}
    </p>
    <p class="chips">
      ${scopes.length
        ? scopes.slice(0, 30).map((each) => html`<span class="chip">${cut(each, 80)}</span>`)
        : html`<span class="yellow">no claim scopes: others count only if the server reads them</span>`}
    </p>
  </div>`;
}

function Rejected({ error }) {
  return html`<div class="bar red" role="alert">
    <p>${error.status ? `${error.status}: ` : ""}${printable(error.message)}</p>
    ${error.status === 401
      ? html`<${Command} text="agentctl auth explain GET /auth/me --token-file FILE" />`
      : null}
  </div>`;
}
