// Approvals: how they are read, shown and decided. The page of one and the dialog of a transcript
// share it. A decision sends the hash of the call that was shown. JSON has integers of any size: what an
// approver sees is what the call gets.

import {
  ApiError, call, canList, componentOf, eventsOf, kindOf, path, placeOfRun, postOnce, send,
  withQuery,
} from "./api.js";
import {
  Command, cut, Dialog, formatSpan, Fragment, html, Json, Loaded, printable, shortId, toHash, useAction, useEffect,
  useNow, useRef, useState,
} from "./ui.js";
import { readExact, writeExact } from "./exact.js";
import { describeRequest, isScalar, PlainFacts, wordsOf } from "./plain.js";
import { Decided, describeWait, waitedSeconds, wayOf } from "./waits.js";

export const formatMoment = (time) => `${printable(time).slice(0, 19).replace("T", " ")} UTC`;

const SIMPLE = ["string", "number", "integer", "boolean"];

/** Return the fields of a schema: `{name, schema, required}`; null if it needs a text of JSON. */
function fieldsOf(schema) {
  if (schema === null || isSimple(schema)) return [{ name: "", schema: schema || { type: "string" }, required: true }];
  const properties = Object.entries(schema.properties || {});
  if (schema.type !== "object" || !properties.length || !properties.every(([, each]) => isSimple(each))) return null;
  const required = schema.required || [];
  return properties.map(([name, each]) => ({ name, schema: each, required: required.includes(name) }));
}

function isSimple(schema) {
  return Boolean(schema) && (Array.isArray(schema.enum) || SIMPLE.includes(schema.type));
}

/** Return the value that was typed into a field; undefined for none. Raises Error. */
function readField({ name, schema, required }, text) {
  const label = name || "The answer";
  if (text === undefined || (text === "" && !(name === "" && schema.type === "string"))) {
    if (required) throw new Error(`${label} is required`);
    return;
  }
  if (schema.enum || schema.type === "boolean") return readExact(text);
  if (schema.type === "string") return text;
  let value = null;
  try {
    value = readExact(text);
  } catch {
  }
  const whole = typeof value === "bigint" || Number.isInteger(value);
  if (!(schema.type === "integer" ? whole : whole || typeof value === "number")) {
    throw new Error(`${label} must be ${schema.type === "integer" ? "an integer" : "a number"}`);
  }
  return value;
}

function Field({ field, text, onChange }) {
  const { name, schema, required } = field;
  const label = schema.title || name || "Answer";
  const options = schema.enum || (schema.type === "boolean" ? [true, false] : null);
  const change = (event) => onChange(event.target.value);
  return html`<label class="field">
    <span>${printable(label)}${required ? "" : html` <span class="dim">optional</span>`}${
      schema.description ? html` <span class="dim">${printable(schema.description)}</span>` : null}</span>
    ${options
      ? html`<select name=${`answer-${name}`} value=${text ?? ""} onChange=${change}>
          <option value="">choose</option>
          ${options.map((each) => html`<option key=${writeExact(each)} value=${writeExact(each)}>${
            schema.type === "boolean" ? (each ? "yes" : "no") : printable(typeof each === "string" ? each : writeExact(each))}</option>`)}
        </select>`
      : html`<input name=${`answer-${name}`} dir="auto" autocomplete="off" inputmode=${schema.type === "string" ? null : "decimal"}
          value=${text ?? ""} onInput=${change} />`}
  </label>`;
}

/** A form whose answer is sent with `onAnswer`; `children` has its note and its buttons. */
function AnswerForm({ schema, onAnswer, children }) {
  const fields = fieldsOf(schema);
  const [texts, setTexts] = useState({});
  const [problem, setProblem] = useState("");
  const change = (name) => (text) => setTexts((old) => ({ ...old, [name]: text }));
  const submit = (event) => {
    event.preventDefault();
    try {
      const answer = read();
      setProblem("");
      onAnswer(answer);
    } catch (error) {
      setProblem(error.message);
    }
  };
  const read = () => {
    if (fields === null) {
      try {
        return readExact(texts[""] ?? "");
      } catch (error) {
        throw new Error(`Not JSON: ${error.message}`);
      }
    }
    if (fields[0].name === "") return readField(fields[0], texts[""]);
    const given = fields.map((field) => [field.name, readField(field, texts[field.name])]);
    return Object.fromEntries(given.filter(([, value]) => value !== undefined));
  };
  return html`<form onSubmit=${submit}>
    ${fields === null
      ? html`<label class="field">Answer as JSON
            <textarea class="mono" name="answer" rows="5" spellcheck="false" value=${texts[""] ?? ""} onInput=${(event) => change("")(event.target.value)}></textarea></label>
          <details><summary>its schema</summary><${Json} text=${writeExact(schema, 2)} /></details>`
      : fields.map((field) => html`<${Field} key=${field.name} field=${field} text=${texts[field.name]} onChange=${change(field.name)} />`)}
    ${problem ? html`<p class="error" role="alert">${printable(problem)}</p>` : null}
    ${children}
  </form>`;
}

export function placeOf({ component_type: kind, component_id: component, approval_id: id }) {
  return path`/${kind}s/${component}/approvals/${id}`;
}

/** Return the record of an approval that the summary of a run names.
 *
 * A caller that cannot read approvals finds its own in the events of the run.
 */
async function loadApproval(summary, run, db) {
  if (canList("approvals")) {
    const query = { run_id: summary.run_id, limit: 100, db_id: db };
    const page = await call("GET", withQuery("/approvals", query));
    const found = page.data.find((each) => each.approval_id === summary.approval_id);
    if (found) return found;
  }
  const [method, place] = eventsOf(run);
  const response = await send(method, withQuery(place, { session_id: run.session_id }), { accept: "text/event-stream" });
  const asked = (await response.text()).split("\n")
    .filter((line) => line.startsWith("data: ") && line.includes(summary.approval_id))
    .flatMap((line) => readExact(line.slice(6)).approvals || [])
    .find((each) => each.approval_id === summary.approval_id);
  if (!asked) throw new ApiError(404);
  const own = summary.run_id === run.run_id;
  return {
    ...asked, ...summary, root_run_id: run.run_id, session_id: run.session_id, user_id: run.user_id,
    component_type: own ? kindOf(run) : "", component_id: own ? componentOf(run) : "",
  };
}

/** Send a decision, which is repeated with the same key if no answer arrives. */
async function sendDecision(approval, decision, { run, db }) {
  let place = `${placeOf(approval)}/decide`;
  let body = decision;
  if (wayOf(approval) !== "decide") {
    const root = run ?? (await call("GET", withQuery(path`/runs/${approval.root_run_id}`, { db_id: db, view: "summary" })));
    place = `${placeOfRun(root)}/continue`;
    body = { decisions: [{ approval_id: approval.approval_id, ...decision }], stream: false, background: true };
  }
  return postOnce(place, writeExact(body));
}

/** A request as a sentence. What the sentence lacks is below it, so that nobody approves what is not shown. */
function PlainRequest({ approval, name }) {
  const { arguments: values, tool_name: tool } = approval;
  const { sentence, isWhole } = describeRequest(approval, name);
  const entries = Object.entries(values || {});
  return html`<div class="asks">
    <p class="question" dir="auto">${sentence}</p>
    ${isWhole ? null : html`<${PlainFacts} values=${values} />`}
    ${entries.length ? html`<details><summary>Details</summary>
      <p class="dim">The agent calls <code>${cut(tool, 64)}</code> with exactly these values:</p><${Arguments} values=${values} /></details>` : null}
  </div>`;
}

/** A value of an argument: a text as it is, unless it looks like another value. */
function Value({ value }) {
  if (typeof value !== "string") return html`<code>${printable(writeExact(value, 2))}</code>`;
  let plain = value.trim() !== "";
  try {
    readExact(value);
    plain = false;
  } catch {
    // It is no JSON, so it cannot be mistaken for a number.
  }
  return html`<pre class="plain" dir="auto">${printable(plain ? value : writeExact(value))}</pre>`;
}

export function Arguments({ values }) {
  const names = Object.keys(values || {});
  if (!names.length) return html`<p class="dim">no arguments</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Arguments"><table class="values">
      <tbody>${names.map((name) => html`<tr key=${name}><th scope="row">${printable(name)}</th><td><${Value} value=${values[name]} /></td></tr>`)}</tbody>
    </table></div>
    <details><summary>as JSON</summary><${Json} text=${writeExact(values, 2)} /></details>`;
}

function Difference({ before, after }) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .filter((name) => !Object.hasOwn(before, name) || !Object.hasOwn(after, name) || writeExact(before[name]) !== writeExact(after[name]));
  if (!names.length) return html`<p class="dim">No changes yet.</p>`;
  const side = (values, name) => Object.hasOwn(values, name) ? html`<${Value} value=${values[name]} />` : html`<span class="dim">none</span>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Difference"><table class="values" data-difference>
    <thead><tr><th scope="col">Argument</th><th scope="col">shown</th><th scope="col">edited</th></tr></thead>
    <tbody>${names.map((name) => html`<tr key=${name}><th scope="row">${printable(name)}</th>
      <td>${side(before, name)}</td><td>${side(after, name)}</td></tr>`)}</tbody></table></div>`;
}

/** The decision about an approval: its form, or who may decide. `run` is the root run, if known. */
export function Decision({ approval, run, db, onDecided, onStale, plain }) {
  const [note, setNote] = useState("");
  const now = useNow(1000);
  const [decide, failure, busy] = useAction(async (decision) => {
    try {
      const given = { ...decision };
      if (["approve", "retry"].includes(given.decision)) given.arguments_hash = approval.arguments_hash;
      if (note.trim()) given.note = note.trim();
      await sendDecision(approval, given, { run, db });
    } catch (error) {
      // The decision of another person, or another call: show it.
      if (error.status === 409) onStale();
      throw error;
    }
    dispatchEvent(new Event("console-decided"));
    onDecided();
  });
  const refused = failure ? html`<${Refusal} failure=${failure} approval=${approval} />` : null;
  if (approval.status !== "pending") return html`${refused}<p role="status" data-decided><${Decided} approval=${approval} /></p>`;
  if (wayOf(approval) === null) return html`<${NotAllowed} approval=${approval} />`;
  const Form = FORMS[approval.kind] || CallForm;
  return html`<div class="decision" data-decision>
    ${plain ? null : html`<p class="yellow"><span aria-hidden="true">‖</span> Waiting ${formatSpan(waitedSeconds(approval, now))}${
      approval.expires_at ? `, expires ${formatMoment(approval.expires_at)}` : ""}</p>`}
    <${Form} key=${approval.arguments_hash} approval=${approval} busy=${busy} decide=${decide} plain=${plain}
      note=${html`<${NoteField} note=${note} setNote=${setNote} folded=${plain} />`} />
    ${refused}
  </div>`;
}

/** The note of a decision, which the agent reads. `folded` shows it on request only. */
function NoteField({ note, setNote, folded }) {
  const field = html`<label class="field">Note
    <input maxlength="500" dir="auto" name="note" value=${note} placeholder="optional" onInput=${(event) => setNote(event.target.value)} /></label>`;
  return folded ? html`<details><summary>Add a note</summary>${field}</details>` : field;
}

function NotAllowed({ approval }) {
  const { component_type: kind, component_id: component, approval_id: id, policy } = approval;
  return html`<p>${policy === "other" ? "Another person than the user of the run has to decide. " : ""}Deciding
      needs <code>approvals:${component || "…"}:write</code>.</p>
    ${component ? html`<${Command} text=${`agentctl auth explain POST /${kind}s/${component}/approvals/${id}/decide`} />` : null}`;
}

function Refusal({ failure, approval }) {
  if (failure.code === "FOUR_EYES") {
    return html`<div class="bar red" role="alert" data-refusal><b>Four eyes.</b> The policy of this call is <code>other</code>: someone
      decides who is not the user of the run and has not started it, with <code>approvals:${approval.component_id}:write</code>.
      The run is your own. <code>[approvals] own = true</code> in the configuration lifts this.</div>`;
  }
  const needed = failure.scopes.at(-1);
  return html`<div class="bar red" role="alert" data-refusal>${printable(failure.message)}${needed ? html`: needs <code>${needed}</code>` : null}</div>`;
}

/** A field for each argument of a call, whose values are texts, numbers, yes or no. */
function PlainArguments({ values, shown, onChange }) {
  const entries = Object.entries(shown);
  return entries.map(([name, before]) => {
    const schema = { title: wordsOf(name), type: typeof before === "boolean" ? "boolean" : typeof before === "string" ? "string" : "number" };
    const field = { name, schema, required: true };
    const value = values[name];
    const text = typeof value === "string" ? value : writeExact(value);
    const change = (typed) => {
      let read = typed;
      try {
        read = readField(field, typed);
      } catch {
        // The text stays until it is a number; the difference shows it as it is.
      }
      onChange({ ...values, [name]: read });
    };
    return html`<${Field} key=${name} field=${field} text=${text} onChange=${change} />`;
  });
}

/** The decision about a call for people who read no code. */
function PlainCallForm({ approval, busy, decide, note }) {
  const shown = approval.arguments || {};
  const [values, setValues] = useState(null);
  const isEditable = Object.keys(shown).length > 0 && Object.values(shown).every((each) => each !== null && isScalar(each));
  const wrong = values && Object.keys(shown).find((name) => typeof shown[name] !== typeof values[name] && !isBothNumber(shown[name], values[name]));
  const edited = values !== null && writeExact(values) !== writeExact(shown);
  const approve = (event) => {
    event.preventDefault();
    if (!wrong) decide(edited ? { decision: "approve", arguments: values } : { decision: "approve" });
  };
  return html`<form onSubmit=${approve}>
    ${values ? html`<${PlainArguments} values=${values} shown=${shown} onChange=${setValues} />
      ${wrong ? html`<p class="error" role="alert">${wordsOf(wrong)} must be a number</p>` : html`<${Difference} before=${shown} after=${values} />`}` : null}
    ${note}
    <div class="buttons edits">
      ${isEditable && !values ? html`<button type="button" class="link" onClick=${() => setValues(shown)}>Change the values</button>` : null}
      ${values ? html`<button type="button" class="link" onClick=${() => setValues(null)}>Discard the changes</button>` : null}
      <button type="button" class="danger" disabled=${busy} onClick=${() => decide({ decision: "reject" })}>Reject</button>
      <button type="submit" class="primary" disabled=${busy || Boolean(wrong)}>${edited ? "Approve with changes" : "Approve"}</button>
    </div>
  </form>`;
}

const isNumber = (value) => typeof value === "number" || typeof value === "bigint";
const isBothNumber = (one, other) => isNumber(one) && isNumber(other);

function CallForm({ approval, busy, decide, note, plain }) {
  if (plain) return html`<${PlainCallForm} approval=${approval} busy=${busy} decide=${decide} note=${note} />`;
  return html`<${JsonCallForm} approval=${approval} busy=${busy} decide=${decide} note=${note} />`;
}

function JsonCallForm({ approval, busy, decide, note }) {
  const shown = approval.arguments || {};
  const [text, setText] = useState(null);
  const { value, problem } = text === null ? { value: shown } : readObject(text);
  const edited = !problem && writeExact(value) !== writeExact(shown);
  const approve = (event) => {
    event.preventDefault();
    if (!problem) decide(edited ? { decision: "approve", arguments: value } : { decision: "approve" });
  };
  return html`<form onSubmit=${approve}>
    ${text === null
      ? html`<button type="button" onClick=${() => setText(writeExact(shown, 2))}>Edit the arguments</button>`
      : html`<label class="field">Arguments as JSON
            <textarea class="mono" name="arguments" rows=${Math.min(16, text.split("\n").length + 1)} spellcheck="false" value=${text}
              aria-invalid=${Boolean(problem)} onInput=${(event) => setText(event.target.value)}></textarea></label>
          ${problem ? html`<p class="error" role="alert">${problem}</p>` : html`<${Difference} before=${shown} after=${value} />`}
          <button type="button" onClick=${() => setText(null)}>Discard the edit</button>`}
    ${note}
    <div class="buttons">
      <button type="button" class="danger" disabled=${busy} onClick=${() => decide({ decision: "reject" })}>Reject</button>
      <button type="submit" class="primary" disabled=${busy || Boolean(problem)}>${edited ? "Approve with changes" : "Approve"}</button>
    </div>
  </form>`;
}

function readObject(text) {
  try {
    const value = readExact(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return { value };
    return { problem: "The arguments must be a JSON object" };
  } catch (error) {
    return { problem: `Not JSON: ${printable(error.message)}` };
  }
}

function InputForm({ approval, busy, decide, note }) {
  return html`<${AnswerForm} schema=${approval.schema} onAnswer=${(answer) => decide({ decision: "answer", answer })}>
    ${note}
    <div class="buttons">
      <button type="button" class="danger" disabled=${busy} onClick=${() => decide({ decision: "reject" })}>Reject</button>
      <button type="submit" class="primary" disabled=${busy}>Answer</button>
    </div>
  <//>`;
}

/** The result of a call: a text, or JSON if someone says so. */
function ResultField({ label, text, setText, json, setJson, problem }) {
  return html`<label class="field">${label}
      <textarea class=${json ? "mono" : ""} name="result" rows="4" dir="auto" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
    <label class="check"><input type="checkbox" checked=${json} onChange=${() => setJson(!json)} /> The result is JSON</label>
    ${problem ? html`<p class="error" role="alert">${problem}</p>` : null}`;
}

function useResult() {
  const [text, setText] = useState("");
  const [json, setJson] = useState(false);
  let value = text;
  let problem = "";
  if (json) {
    try {
      value = readExact(text);
    } catch (error) {
      problem = `Not JSON: ${printable(error.message)}`;
    }
  }
  return { value, problem, text, setText, json, setJson };
}

function ExternalForm({ approval, busy, decide, note }) {
  const result = useResult();
  const complete = (event) => (event.preventDefault(), result.problem || decide({ decision: "complete", result: result.value }));
  return html`<form onSubmit=${complete}>
    <p>The caller makes this call: run <code>${cut(approval.tool_name, 64)}</code> with the arguments above, and give its result to the agent.</p>
    <${ResultField} label="Result" ...${result} />
    ${note}
    <div class="buttons">
      <button type="button" class="danger" disabled=${busy} onClick=${() => decide({ decision: "fail" })}>The call failed</button>
      <button type="submit" class="primary" disabled=${busy || Boolean(result.problem)}>Complete</button>
    </div>
  </form>`;
}

const OUTCOMES = [
  ["complete", "It was made", "The call had its effect. The agent gets the result that you enter, and the call is not made again."],
  ["fail", "It was not made; do not make it", "The agent reads that the call failed, with your note."],
  ["retry", "It was not made: make it now", "The call is made again with the same arguments. If it had its effect after all, it has it twice."],
];

function OutcomeForm({ approval, busy, decide, note }) {
  const [choice, setChoice] = useState("");
  const result = useResult();
  const problem = choice === "complete" ? result.problem : "";
  const submit = (event) => {
    event.preventDefault();
    if (choice && !problem) decide(choice === "complete" ? { decision: choice, result: result.value } : { decision: choice });
  };
  return html`<form onSubmit=${submit}>
    <p>The server died while it made this call. <b>It is not known whether <code>${cut(approval.tool_name, 64)}</code> had its effect.</b> Look
      where the call would have left a trace, then say what happened.</p>
    <fieldset>
      <legend class="hidden">What happened</legend>
      ${OUTCOMES.map(([verb, label, text]) => html`<label key=${verb} class="choice">
        <input type="radio" name="outcome" value=${verb} checked=${choice === verb} onChange=${() => setChoice(verb)} />
        <span><b>${label}</b> <span class="dim">${text}</span></span></label>`)}
    </fieldset>
    ${choice === "complete" ? html`<${ResultField} label="Result of the call" ...${result} />` : null}
    ${note}
    <div class="buttons"><button type="submit" class=${choice === "retry" ? "danger" : "primary"} disabled=${busy || !choice || Boolean(problem)}>
      ${choice === "retry" ? "Make the call again" : choice === "fail" ? "Report the failure" : "Report the result"}</button></div>
  </form>`;
}

const FORMS = { approval: CallForm, input: InputForm, external: ExternalForm, outcome: OutcomeForm };

/** What an approval asks. `plain` is the name of the component, for people who read no code. */
export function Asked({ approval, plain }) {
  const { question, arguments: values, kind, approved_arguments: approved } = approval;
  if (plain) return html`<${PlainRequest} approval=${approval} name=${plain} />`;
  return html`<div class="asks">
    ${question ? html`<p class="question" dir="auto">${printable(question)}</p>` : null}
    ${kind === "input" && !Object.keys(values || {}).length ? null : html`<${Arguments} values=${values} />`}
    ${approved ? html`<h3 class="caption">Approved with changes</h3><${Difference} before=${values || {}} after=${approved} />` : null}</div>`;
}

/** The form of an approval that the summary of a run names; `onLoaded` gets its record. */
export function Pending({ summary, run, db, onDecided, onLoaded, plain }) {
  const [found, set] = useState({ data: undefined, error: null, retryAt: 0 });
  const gone = useRef(false);
  const show = (data) => {
    if (gone.current) return;
    set({ data, error: null, retryAt: 0 });
    onLoaded?.(data);
  };
  const load = () => loadApproval(summary, run, db).then(
    show,
    (error) => gone.current || set({ data: undefined, error, retryAt: 0 }),
  );
  useEffect(() => {
    gone.current = false;
    load();
    return () => (gone.current = true);
  }, [summary.status]);
  return html`<${Loaded} resource=${{ ...found, reload: load }} rows=${3}>
    ${(approval) => html`<${Fragment}><${Asked} approval=${approval} plain=${plain} />
      <${Decision} approval=${approval} run=${run} db=${db} plain=${plain} onDecided=${onDecided} onStale=${() => (onDecided(true), load())} /><//>`}
  <//>`;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function DecideDialog({ summary, onClose, onDecided, ...shared }) {
  const [record, setRecord] = useState(null);
  const decided = (stale) => {
    onDecided();
    if (!stale) onClose();
  };
  return html`<${Dialog} title=${capital(describeWait(summary))} onClose=${onClose} wide=${true}>
    <${Pending} summary=${summary} onDecided=${decided} onLoaded=${setRecord} ...${shared} />
    <div class="buttons">
      ${canList("approvals") && record?.component_id ? html`<a href=${toHash(["approvals", record.component_type, record.component_id, summary.approval_id])}
        onClick=${onClose}>Approval ${shortId(summary.approval_id)}</a>` : null}
      <button type="button" onClick=${onClose}>Close</button>
    </div>
  <//>`;
}
