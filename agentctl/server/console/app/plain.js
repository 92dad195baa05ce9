// Calls and values in words, for people who read neither code nor JSON.

import { writeExact } from "./exact.js";
import { cut, html, printable } from "./ui.js";

export const isScalar = (value) => value === null || typeof value !== "object";

const PLAIN = /^[\w.@#$€£%/:+-]+$/;
const MOST_WORDS = 80;

/** Return the name of a tool or of an argument as words: `mail_customer` and `mailCustomer` are `mail customer`. */
export function wordsOf(name) {
  return cut(name, 64).replace(/([a-z])([A-Z])/g, "$1 $2").replace(/[_-]+/g, " ").trim().toLowerCase();
}

/** Return a text, a number, yes or no. Quotation marks show where a text ends that has words of its own. */
function sayScalar(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  const text = printable(String(value));
  return PLAIN.test(text) ? text : `“${text}”`;
}

/** Return the arguments of a call as `order 17, urgent yes`; "" if they are too long or too deep for a sentence. */
function sayArguments(values, lastWord) {
  const parts = [];
  for (const [name, value] of Object.entries(values || {})) {
    if (value === null || !isScalar(value)) return "";
    const words = wordsOf(name);
    const said = sayScalar(value);
    parts.push(!parts.length && words === lastWord ? said : `${words} ${said}`);
  }
  const text = parts.join(", ");
  return text.length <= MOST_WORDS && !text.includes("\n") ? text : "";
}

/** Return what an approval asks as `{sentence, isWhole}`: `Clerk wants to refund order 17`.
 *
 * `name` is that of the component. `isWhole` is true if the sentence has all arguments.
 */
export function describeRequest(approval, name) {
  const { kind, tool_name: tool, arguments: values, question } = approval;
  const who = cut(name, 60) || "The agent";
  if (question) return { sentence: printable(question), isWhole: !Object.keys(values || {}).length };
  if (kind === "input") return { sentence: `${who} needs an answer`, isWhole: !Object.keys(values || {}).length };

  const words = wordsOf(tool);
  const said = sayArguments(values, words.split(" ").at(-1));
  const isWhole = Boolean(said) || !Object.keys(values || {}).length;
  const call = [words, said].filter(Boolean).join(" ");
  if (kind === "outcome") return { sentence: `${who} may have made this call: ${call}`, isWhole };
  if (kind === "external") return { sentence: `${who} needs the result of ${call}`, isWhole };
  return { sentence: `${who} wants to ${call}`, isWhole };
}

/** A value in words; lists and objects are lines of their own. */
export function PlainValue({ value, depth = 0 }) {
  if (value === null) return html`<span class="dim">none</span>`;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (isScalar(value)) return html`<span class="plain">${printable(value)}</span>`;
  if (depth > 3) return html`<code>${printable(writeExact(value))}</code>`;
  if (Array.isArray(value)) return html`<ul>${value.map((each, at) => html`<li key=${at}><${PlainValue} value=${each} depth=${depth + 1} /></li>`)}</ul>`;
  return html`<${PlainFacts} values=${value} depth=${depth + 1} />`;
}

/** Named values, a line each. */
export function PlainFacts({ values, depth = 0 }) {
  return html`<dl class="facts">${Object.entries(values || {}).map(([name, value]) => html`<dt key=${name}>${wordsOf(name)}</dt>
    <dd dir="auto"><${PlainValue} value=${value} depth=${depth} /></dd>`)}</dl>`;
}
