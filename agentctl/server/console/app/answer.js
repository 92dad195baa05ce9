// The form of an answer: fields from its JSON Schema, or a text of JSON.

import { html, printable, useState } from "./ui.js";
import { readExact, writeExact } from "./exact.js";

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
    // Not a number.
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
export function AnswerForm({ schema, onAnswer, children }) {
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
          <details><summary>its schema</summary><pre class="json" tabindex="0">${printable(writeExact(schema, 2))}</pre></details>`
      : fields.map((field) => html`<${Field} key=${field.name} field=${field} text=${texts[field.name]} onChange=${change(field.name)} />`)}
    ${problem ? html`<p class="error" role="alert">${printable(problem)}</p>` : null}
    ${children}
  </form>`;
}
