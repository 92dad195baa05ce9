// One field for the filters of a list: words such as `status:failed user:ada "cake"` become parameters
// of the hash, which are chips below the field. It completes keys and values, and keeps views.

import { known, loadComponents } from "./api.js";
import { cut, html, printable, setQuery, STATUSES, useEffect, useMemo, useRef, useState } from "./ui.js";

const TOKEN = /(?:([a-z-]+):)?(?:"([^"]*)"?|(\S*))\s*/g;
const MOST_OPTIONS = 12;
const STORE = "console.views";
const MOST_VIEWS = 20;

/** A filter of a list.
 *
 * `key` is its word, `name` its parameter in the hash if it is another, `about` its description.
 * `values` are its only values as `[word, value]`; `suggest` are some of them, for `component` the ids
 * that the caller can read. `more` are parameters that the list needs for it.
 */

export const same = (...words) => words.map((word) => [word, word]);
export const COMPONENT = { key: "component", about: "id of an agent, team or workflow" };
export const TYPE = { key: "type", about: "kind of component", values: same("agent", "team", "workflow") };
export const RUN_STATUS = Object.entries(STATUSES).map(([value, word]) => [word, value]);

export const useAgo = (seconds) => useMemo(() => (Number(seconds) ? new Date(Date.now() - seconds * 1000).toISOString() : ""), [seconds]);

const nameOf = (filter) => filter.name ?? filter.key;
const quote = (text) => (/[\s"]/.test(text) || !text ? `"${text}"` : text);
const isActive = (filter, query) => query[nameOf(filter)] && Object.entries(filter.more ?? {}).every(([name, value]) => query[name] === value);

/** Return the changes of the hash that a text asks for, or a message about what is wrong with it. */
export function readFilters(text, keys, words) {
  const changes = {};
  const found = [];
  for (const [, key, quoted, plain] of text.trim().matchAll(TOKEN)) {
    const value = quoted ?? plain;
    if (key === undefined) {
      if (value) found.push(value);
      continue;
    }
    const filter = keys.find((each) => each.key === key);
    if (!filter) {
      const hint = words ? ' Write a word with a colon in quotation marks: "a:b".' : "";
      return { message: `Unknown filter ${key}. This list has: ${keys.map((each) => each.key).join(", ")}.${hint}` };
    }
    const choice = filter.values ? filter.values.find(([word]) => word === value.toLowerCase()) : value && [value, value];
    if (!choice) {
      const allowed = filter.values ? filter.values.map(([word]) => word).join(", ") : filter.about;
      return { message: `${value ? `${key} cannot be ${cut(value, 40)}` : `${key} needs a value`}: ${allowed}.` };
    }
    Object.assign(changes, filter.more, { [nameOf(filter)]: choice[1] });
  }
  if (found.length && !words) {
    return { message: `This list has no text search. Use a filter and a value, such as ${keys[0].key}:${keys[0].values?.[0][0] ?? "…"}.` };
  }
  return { changes: found.length ? { ...changes, ...words.more, [words.name]: found.join(" ") } : changes };
}

export function complete(text, keys) {
  const token = /\S*$/.exec(text)[0];
  if (text.split('"').length % 2 === 0) return [];
  const [, key, start] = /^([a-z-]+):(.*)$/.exec(token) ?? [];
  const before = text.slice(0, text.length - token.length);
  const filter = key && keys.find((each) => each.key === key);
  if (!filter) {
    return keys.filter((each) => each.key.startsWith(token)).map((each) => ({ text: `${before}${each.key}:`, label: `${each.key}:`, about: each.about }));
  }
  const values = filter.values?.map(([word]) => word) ?? filter.suggest ?? (key === "component" ? known.components.map(({ id }) => id) : []);
  return values.filter((word) => word.toLowerCase().includes(start.toLowerCase())).slice(0, MOST_OPTIONS)
    .map((word) => ({ text: `${before}${key}:${quote(word)}`, label: `${key}:${quote(word)}`, about: "", whole: true }));
}

/** Return `Filter: status:running, or search text`: what one can type. */
function describeField(keys, words) {
  const [{ key, values }] = keys;
  return `Filter: ${key}:${values?.[0][0] ?? "…"}${words ? ", or search text" : ""}`;
}

/** The filters of a list in one field, with chips and views. `words` is the filter of words without a key. */
export function Filters({ page, keys, words, query, children }) {
  const [text, setText] = useState("");
  const [message, say] = useState("");
  const [at, setAt] = useState(-1);
  const [open, setOpen] = useState(false);
  const [shown, show] = useState(false);
  const input = useRef(null);
  const options = open ? complete(text, keys) : [];
  useEffect(() => void document.getElementById(`completion-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  const given = keys.filter((each) => isActive(each, query)).map((each) => {
    const value = query[nameOf(each)];
    const word = each.values?.find((pair) => pair[1] === value)?.[0] ?? value;
    return { name: nameOf(each), text: `${each.key}:${quote(word)}` };
  });
  if (words && isActive(words, query)) given.push({ name: words.name, text: `"${query[words.name]}"` });

  const type = (value, stays = true) => {
    setText(value);
    say("");
    setAt(-1);
    setOpen(stays);
  };
  const focus = () => {
    setOpen(true);
    if (keys.some(({ key }) => key === "component")) loadComponents();
  };
  const apply = (value) => {
    const { changes, message: wrong } = readFilters(value, keys, words);
    type(wrong ? value : "", false);
    if (wrong) say(wrong);
    else setQuery(changes);
  };
  const choose = (option) => {
    if (option.whole) apply(option.text);
    else type(option.text);
    input.current.focus();
  };
  const remove = ({ name }) => {
    setQuery({ [name]: "" });
    input.current.focus();
  };
  const press = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      const count = open ? options.length : complete(text, keys).length;
      setOpen(true);
      setAt(count ? (Math.max(at, step < 0 ? 0 : -1) + step + count) % count : -1);
    } else if (event.key === "Enter") {
      if (options[at]) choose(options[at]);
      else apply(text);
    } else if (event.key === "Tab" && options[at]) choose(options[at]);
    else if (event.key === "Escape" && options.length) {
      setOpen(false);
      // Without a text the same key leaves the field.
      if (text) event.stopPropagation();
    } else if (event.key === "Backspace" && !text && given.length) {
      const last = given.at(-1);
      setQuery({ [last.name]: "" });
      type(last.text);
    } else return;
    event.preventDefault();
  };

  return html`<div class=${shown ? "filters shown" : "filters"}>
      ${children}
      <button type="button" class="narrow" aria-expanded=${shown} onClick=${() => show(!shown)}>Filters${given.length ? ` (${given.length})` : ""}</button>
      <div class="combo">
        <input ref=${input} type="text" role="combobox" data-main="true" dir="auto" autocomplete="off" spellcheck="false" aria-label="Filters"
          aria-expanded=${options.length > 0} aria-controls="completions" aria-autocomplete="list" aria-describedby=${message ? "filter-message" : null}
          aria-invalid=${message ? "true" : null} aria-activedescendant=${options[at] ? `completion-${at}` : null}
          placeholder=${describeField(keys, words)} value=${text}
          onInput=${(event) => type(event.target.value)} onKeyDown=${press} onFocus=${focus} onBlur=${() => setOpen(false)} />
        <ul id="completions" role="listbox" aria-label="Completions" hidden=${!options.length}>
          ${options.map((option, number) => html`<li key=${option.label} id=${`completion-${number}`} role="option" aria-selected=${number === at}
            onMouseDown=${(event) => event.preventDefault()} onClick=${() => choose(option)}><b>${cut(option.label, 60)}</b> <span class="dim">${option.about}</span></li>`)}
        </ul>
      </div>
      <${Views} page=${page} />
    </div>
    ${message ? html`<p id="filter-message" class="error spread" role="alert">${printable(message)}</p>` : null}
    ${given.length ? html`<p class="chips spread" data-given>${given.map((each) => html`<button key=${each.name} type="button" class="chip"
        aria-label=${`Remove the filter ${each.text}`} onClick=${() => remove(each)}>${cut(each.text, 70)} <span aria-hidden="true">✕</span></button>`)}
      ${given.length > 1 ? html`<button type="button" class="link" onClick=${() => setQuery(Object.fromEntries(given.map(({ name }) => [name, ""])))}>Remove all</button>` : null}</p>` : null}`;
}

// Views: names of places, which the browser keeps. They have no data of a server but their filters.

function readViews() {
  try {
    const found = JSON.parse(localStorage.getItem(STORE)) ?? [];
    return found.filter((each) => typeof each.name === "string" && /^#\/[a-z]/.test(each.place)).slice(-MOST_VIEWS);
  } catch {
    return [];
  }
}

function writeViews(views) {
  try {
    localStorage.setItem(STORE, JSON.stringify(views.slice(-MOST_VIEWS)));
  } catch {
    // Storage is switched off: views last as long as the page.
  }
}

function Views({ page }) {
  const [views, set] = useState(readViews);
  const menu = useRef(null);
  const store = (changed) => {
    set(changed);
    writeViews(changed);
  };
  const save = (event) => {
    event.preventDefault();
    const name = new FormData(event.target).get("name").trim();
    if (!name) return;
    store([...views.filter((each) => each.name !== name || !isOf(each, page)), { name, place: location.hash }]);
    event.target.reset();
    menu.current.open = false;
  };
  const own = views.filter((each) => isOf(each, page));
  const close = (event) => {
    if (event.key !== "Escape" || !menu.current.open) return;
    menu.current.open = false;
    menu.current.firstElementChild.focus();
    event.stopPropagation();
  };
  return html`<details class="views" ref=${menu} onKeyDown=${close}><summary>Saved views${own.length ? ` (${own.length})` : ""}</summary>
    <div class="panel">
      ${own.length ? html`<ul>${own.map((each) => html`<li key=${each.name} class="row"><a class="grow" href=${each.place} onClick=${() => (menu.current.open = false)}>${cut(each.name, 40)}</a>
        <button type="button" class="link" aria-label=${`Delete the view ${cut(each.name, 40)}`} onClick=${() => store(views.filter((view) => view !== each))}>Delete</button></li>`)}</ul>`
      : html`<p class="dim">Save the filters of this list under a name. Saved views stay in this browser.</p>`}
      <form class="row" onSubmit=${save}><input name="name" class="grow" aria-label="Name of the view" placeholder="Name" maxlength="40" required />
        <button type="submit">Save</button></form>
    </div></details>`;
}

const isOf = (view, page) => view.place.split("?")[0] === `#/${page}`;
