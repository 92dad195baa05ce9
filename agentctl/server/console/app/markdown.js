// Markdown as elements: marked splits the text into tokens, and each token becomes a node. HTML in
// the text is shown as text, links lead to http(s) only, and images are links.

import { Lexer } from "../vendor/marked.mjs";
import { h } from "../vendor/preact.mjs";
import { Copy, html } from "./ui.js";

const MAXIMUM_CHARACTERS = 50_000;
// The time for emphasis grows with the square of the number of its marks.
const MAXIMUM_MARKS = 500;
const MARKS = /[*_~]+/g;
const DEPTH = 12;
const RIGHT_TO_LEFT = /^[^\p{L}]*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

/** Return the nodes of a text. One that takes long or is not readable as Markdown stays plain. */
export function Markdown({ text }) {
  if (text.length > MAXIMUM_CHARACTERS || (text.match(MARKS)?.length ?? 0) > MAXIMUM_MARKS) {
    return html`<pre class="plain" dir="auto">${text}</pre>`;
  }
  try {
    const tokens = new Lexer({ gfm: true, breaks: true }).lex(text);
    setLevels(tokens);
    return html`<div class="markdown">${renderAll(tokens, 0)}</div>`;
  } catch {
    return html`<pre class="plain" dir="auto">${text}</pre>`;
  }
}

/** Set the levels of headings so that none is left out: a page has one h1, and this begins below. */
function setLevels(tokens) {
  const open = [];
  for (const token of tokens) {
    if (token.type !== "heading") continue;
    while (open.at(-1) >= token.depth) open.pop();
    open.push(token.depth);
    token.level = open.length + 1;
  }
}

/** Return the direction of a block. `dir="auto"` would not look into the paragraphs in it. */
function directionOf(text) {
  return RIGHT_TO_LEFT.test(text) ? "rtl" : "ltr";
}

function renderAll(tokens, depth) {
  return (tokens || []).map((token) => render(token, depth + 1));
}

/** Return a text of an inline token; marked has escaped nothing in it. */
function decode(text) {
  return text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (all, name) => ENTITIES[name]);
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

function render(token, depth) {
  if (depth > DEPTH) return token.raw;
  const inside = () => renderAll(token.tokens, depth);
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // A heading in a list or a quotation is none of the page.
      return h(token.level ? `h${Math.min(token.level, 6)}` : "b", { dir: "auto" }, inside());
    case "paragraph":
      return html`<p dir="auto">${inside()}</p>`;
    case "text":
      return token.tokens ? inside() : decode(token.text);
    case "escape":
      return token.text;
    case "strong":
      return html`<strong>${inside()}</strong>`;
    case "em":
      return html`<em>${inside()}</em>`;
    case "del":
      return html`<del>${inside()}</del>`;
    case "br":
      return html`<br />`;
    case "hr":
      return html`<hr />`;
    case "codespan":
      return html`<code>${token.text}</code>`;
    case "code":
      return html`<div class="block"><pre class="code" tabindex="0"><code>${token.text}</code></pre><${Copy} text=${token.text} /></div>`;
    case "blockquote":
      return html`<blockquote dir=${directionOf(token.text)}>${inside()}</blockquote>`;
    case "link":
      return link(token.href, inside());
    case "image":
      return link(token.href, [`Image: ${token.text || token.href}`]);
    case "list":
      return list(token, depth);
    case "table":
      return table(token, depth);
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    default:
      return token.raw;
  }
}

function link(href, children) {
  let url = null;
  try {
    url = new URL(href);
  } catch {
    // A relative link of a model has no meaning here.
  }
  if (url === null || !["http:", "https:"].includes(url.protocol)) {
    return html`<span>${children}${href ? ` (${href})` : null}</span>`;
  }
  return html`<a href=${url.href} rel="noreferrer noopener nofollow" target="_blank">${children}</a>`;
}

function list(token, depth) {
  const items = token.items.map((item) => html`<li dir=${directionOf(item.text)}>${renderAll(item.tokens, depth)}</li>`);
  return token.ordered ? html`<ol start=${token.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
}

function table(token, depth) {
  const row = (cells, tag) => html`<tr>${cells.map((cell, at) =>
    html`<${tag} dir="auto" class=${token.align[at] || undefined}>${renderAll(cell.tokens, depth)}<//>`)}</tr>`;
  return html`<div class="scroll" tabindex="0"><table>
    <thead>${row(token.header, "th")}</thead>
    <tbody>${token.rows.map((cells) => row(cells, "td"))}</tbody>
  </table></div>`;
}
