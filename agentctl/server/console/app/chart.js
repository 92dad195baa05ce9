// Pictures of sums by hour or day: bars and lines in SVG, a brush over them, the table behind each.

import { formatNumber, html, useLayoutEffect, useMemo, useRef, useState } from "./ui.js";

const TOP = 10;
const LEFT = 64;
const HEIGHT = 132;
const LABEL = 62;
const MANY = 60;
export const UNITS = { hour: 3_600_000, day: 86_400_000 };
const STEPS = { hour: [1, 2, 3, 6, 12, 24, 48, 168], day: [1, 2, 7, 14, 28, 56, 112] };

// Looks: every series differs from the others without its color

const FILLS = { solid: "var(--green)", hatched: "url(#hatched)", lined: "url(#lined)", dotted: "url(#dotted)", plain: "var(--accent)" };
const STROKES = { solid: "var(--green)", hatched: "var(--red)", lined: "var(--grey)", dotted: "var(--accent)", plain: "var(--accent)" };
const LINES = {
  circle: ["var(--green)", "", (x, y) => `M${x - 3} ${y}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z`],
  triangle: ["var(--accent)", "7 3", (x, y) => `M${x - 4} ${y + 3}h8l-4 -7z`],
  square: ["var(--red)", "2 3", (x, y) => `M${x - 3} ${y - 3}h6v6h-6z`],
};

export function Patterns() {
  return html`<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>
    <pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" fill="var(--red-soft)" /><rect width="3" height="6" fill="var(--red)" /></pattern>
    <pattern id="lined" width="6" height="4" patternUnits="userSpaceOnUse">
      <rect width="6" height="4" fill="var(--soft)" /><rect width="6" height="1.5" fill="var(--grey)" /></pattern>
    <pattern id="dotted" width="5" height="5" patternUnits="userSpaceOnUse">
      <rect width="5" height="5" fill="var(--accent-soft)" /><circle cx="2.5" cy="2.5" r="1.3" fill="var(--accent)" /></pattern>
  </defs></svg>`;
}

function Swatch({ look }) {
  const [stroke, dash, mark] = LINES[look] || [];
  return html`<svg width="18" height="12" aria-hidden="true">
    ${mark
      ? html`<path d="M0 6h18" stroke=${stroke} stroke-width="2" stroke-dasharray=${dash} /><path d=${mark(9, 6)} fill=${stroke} />`
      : html`<rect x="1" y="1" width="16" height="10" fill=${FILLS[look]} stroke=${STROKES[look]} />`}
  </svg>`;
}

export const endOf = (at, step) => new Date(Date.parse(at) + UNITS[step]).toISOString();

/** Return the span from one hour or day to another in words; both are part of it. */
export function describeSpan(first, last, step) {
  const [from, to] = [first.slice(0, 10), last.slice(0, 10)];
  if (step === "day") return from === to ? from : `${from} to ${to}`;
  const end = endOf(last, step);
  const [day, time] = [end.slice(0, 10), end.slice(11, 16)];
  const midnight = time === "00:00" && to === from;
  return `${from} ${first.slice(11, 16)} to ${day === from || midnight ? "" : `${day} `}${midnight ? "24:00" : time} UTC`;
}

/** The hours or days that are selected in all pictures of a page.
 *
 * Times are kept, so that a selection stays where it is when the next hour begins. The result has
 * `first` and `last`, numbers of points or null, and `held`: false while a pointer only hovers.
 */
export function useBrush(points, step) {
  const [chosen, set] = useState(null);
  const numbers = useMemo(() => new Map(points.map((point, number) => [point.at, number])), [points]);
  const [anchor, head] = chosen ? [numbers.get(chosen.anchor), numbers.get(chosen.head)] : [];
  const known = anchor !== undefined && head !== undefined;
  const select = (from, to, held = true) => {
    const next = { anchor: points[from].at, head: points[to].at, held };
    set((old) => (old?.anchor === next.anchor && old.head === next.head && old.held === held ? old : next));
  };
  return {
    points, step, select, anchor, head,
    first: known ? Math.min(anchor, head) : null,
    last: known ? Math.max(anchor, head) : null,
    held: known && chosen.held,
    clear: () => set(null),
    hover: (at) => (known && chosen.held) || (at === null ? set(null) : select(at, at, false)),
  };
}

function ceilRound(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 8, 10].find((each) => value <= each * power * 1.0001);
}

function scaleOf(values, logarithmic) {
  const most = Math.max(...values, 0);
  if (!most) return { ticks: [], of: () => 0 };
  if (!logarithmic) {
    const top = ceilRound(most);
    return { ticks: top === 1 ? [0, 1] : [0, top / 2, top], of: (value) => value / top };
  }
  const low = Math.floor(Math.log10(Math.max(0.001, Math.min(...values))));
  const high = Math.max(low + 1, Math.ceil(Math.log10(most)));
  const every = Math.ceil((high - low) / 4);
  const ticks = Array.from({ length: high - low + 1 }, (_, at) => at).filter((at) => at % every === 0);
  return {
    ticks: ticks.map((at) => 10 ** (low + at)),
    of: (value) => Math.max(0, (Math.log10(Math.max(0.001, value)) - low) / (high - low)),
  };
}

function labelsOf(points, step, width) {
  const room = Math.max(2, Math.floor(width / LABEL));
  const every = STEPS[step].find((each) => points.length / each <= room) || points.length;
  return points.flatMap(({ at }, number) => {
    if (Math.round(Date.parse(at) / UNITS[step]) % every) return [];
    const midnight = at.slice(11, 16) === "00:00";
    return [[number, step === "day" || midnight ? at.slice(5, 10) : at.slice(11, 16)]];
  });
}

function drawBars(series, values, x, slot, scale) {
  const gap = slot > 5 ? 1 : 0;
  const bases = values[0].map(() => 0);
  return series.map(({ name, look }, row) => {
    const path = values[row].map((value, at) => {
      if (!value) return "";
      const from = bases[at];
      bases[at] += value;
      const [low, high] = [from, bases[at]].map((each) => TOP + HEIGHT * (1 - scale.of(each)));
      return `M${(x(at) + gap).toFixed(1)} ${low.toFixed(1)}h${(slot - 2 * gap).toFixed(1)}V${high.toFixed(1)}h${(2 * gap - slot).toFixed(1)}z`;
    }).join("");
    return html`<path key=${name} data-series=${name} d=${path} fill=${FILLS[look]} stroke=${STROKES[look]} stroke-width=${look === "solid" || look === "plain" ? 0 : 0.7} />`;
  });
}

/** Return lines with marks; hours without a value interrupt them. */
function drawLines(series, values, x, slot, scale) {
  return series.map(({ name, look }, row) => {
    const [stroke, dash, mark] = LINES[look];
    const given = (at) => values[row][at] != null;
    let line = "";
    let marks = "";
    values[row].forEach((value, at) => {
      if (!given(at)) return;
      const [left, top] = [x(at) + slot / 2, TOP + HEIGHT * (1 - scale.of(value))];
      line += `${given(at - 1) ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`;
      if (values[row].length <= MANY || (!given(at - 1) && !given(at + 1))) marks += mark(left, top);
    });
    return html`<g key=${name} data-series=${name}><path d=${line} fill="none" stroke=${stroke} stroke-width="2" stroke-dasharray=${dash} />
      <path d=${marks} fill=${stroke} /></g>`;
  });
}

function Plot({ title, series, values, lines, brush, format, describe, open }) {
  const box = useRef(null);
  const anchor = useRef(null);
  const [width, setWidth] = useState(0);
  // Before the browser paints: a picture never has another width first.
  useLayoutEffect(() => {
    const measure = () => setWidth(box.current.clientWidth);
    const resized = new ResizeObserver(measure);
    resized.observe(box.current);
    measure();
    return () => resized.disconnect();
  }, []);
  const { points, step } = brush;
  const last = points.length - 1;
  const slot = Math.max(0, width - LEFT - 4) / Math.max(1, points.length);
  const x = (at) => LEFT + at * slot;
  const tops = lines ? values.flat().filter((value) => value != null) : points.map((_, at) => values.reduce((sum, row) => sum + (row[at] || 0), 0));
  const scale = scaleOf(tops, lines);
  const labels = labelsOf(points, step, width - LEFT);
  const at = (event) => {
    const left = event.clientX - box.current.getBoundingClientRect().left - LEFT;
    return Math.min(last, Math.max(0, Math.floor(left / slot)));
  };
  const begin = (event) => {
    if (event.button) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    anchor.current = at(event);
    brush.select(anchor.current, anchor.current);
  };
  const move = (event) => (anchor.current === null ? brush.hover(at(event)) : brush.select(anchor.current, at(event)));
  const end = () => (anchor.current = null);
  const press = (event) => {
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -6, PageUp: 6, Home: -points.length, End: points.length };
    const moved = moves[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moved !== undefined) {
      const from = brush.held ? brush.head : moved < 0 ? last + 1 : event.key === "End" ? last : -1;
      const to = Math.min(last, Math.max(0, from + moved));
      brush.select(event.shiftKey && brush.held ? brush.anchor : to, to);
    } else if (event.key === "Enter" && brush.held) open();
    else if (event.key === "Escape") brush.clear();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const selected = brush.first !== null;
  return html`<div class="plot" ref=${box} tabindex="0" role="slider" aria-label=${`${title}: ${step}s`} aria-orientation="horizontal"
    aria-valuemin="0" aria-valuemax=${Math.max(0, last)} aria-valuenow=${brush.held ? brush.head : 0}
    aria-valuetext=${brush.held ? describe() : `nothing selected of ${points.length} ${step}s`}
    onPointerDown=${last < 0 ? null : begin} onPointerMove=${last < 0 ? null : move} onPointerUp=${end} onPointerCancel=${end}
    onPointerLeave=${() => brush.hover(null)} onDblClick=${() => brush.held && open()} onKeyDown=${last < 0 ? null : press}>
    <svg width=${width} height="160" aria-hidden="true">
      ${selected ? html`<rect class=${brush.held ? "chosen held" : "chosen"} x=${x(brush.first)} y=${TOP - 4} height=${HEIGHT + 4}
        width=${(brush.last - brush.first + 1) * slot} />` : null}
      ${(scale.ticks.length ? scale.ticks : [0]).map((tick) => {
        const y = TOP + HEIGHT * (1 - scale.of(tick));
        return html`<g key=${tick}><path class="grid" d=${`M${LEFT} ${y}H${width}`} /><text x=${LEFT - 6} y=${y + 4} text-anchor="end">${format(tick)}</text></g>`;
      })}
      ${labels.map(([number, text]) => html`<text key=${number} x=${Math.min(x(number), width - 34)} y=${TOP + HEIGHT + 16}>${text}</text>`)}
      ${width && points.length ? (lines ? drawLines : drawBars)(series, values, x, slot, scale) : null}
    </svg>
  </div>`;
}

/** A picture with its legend, and the table behind it.
 *
 * `series` are `{name, look, value, href}`: `value` and `href` are functions of a point, or of the
 * total. `more` are columns of the table that the picture has not. `short` formats the axis, `remark`
 * is a part of the legend.
 */
export function Figure({ title, note, series = [], more = [], remark, total, lines = false, format = formatNumber, short = format, brush, describe, open, children }) {
  const [shown, show] = useState(false);
  const { points, step } = brush;
  const values = series.map(({ value }) => points.map(value));
  return html`<figure class="panel" data-figure=${title}>
    <figcaption class="row"><h2>${title}</h2>${note ? html`<span class="dim">${note}</span>` : null}</figcaption>
    ${children || html`<ul class="legend">${series.map(({ name, look, value }) => html`<li key=${name}><${Swatch} look=${look} /> ${name}
        ${" "}<b>${total ? formatCell(format, value(total)) : "–"}</b></li>`)}${remark ? html`<li class="dim">${remark}</li>` : null}</ul>
      <${Plot} title=${title} series=${series} values=${values} lines=${lines} brush=${brush} format=${short} describe=${describe} open=${open} />
      <details onToggle=${(event) => show(event.currentTarget.open)}><summary>Table<span class="hidden">: ${title}</span></summary>
        ${shown ? html`<${Table} title=${title} columns=${[...series, ...more]} points=${points} step=${step} total=${total} format=${format} />` : null}
      </details>`}
  </figure>`;
}

const formatCell = (format, value) => (value == null ? "–" : typeof value === "string" ? value : format(value));

function Table({ title, columns, points, step, total, format }) {
  const row = (name, point) => html`<tr key=${name}><th scope="row">${name}</th>
    ${columns.map(({ name: column, value, href }) => {
      const text = formatCell(format, value(point));
      const to = href && value(point) ? href(point) : null;
      return html`<td key=${column} class="right">${to ? html`<a href=${to}>${text}</a>` : text}</td>`;
    })}</tr>`;
  return html`<div class="scroll tall" tabindex="0" role="region" aria-label=${`Table: ${title}`}><table>
    <thead><tr><th scope="col">${step === "hour" ? "Hour (UTC)" : "Day (UTC)"}</th>
      ${columns.map(({ name }) => html`<th key=${name} scope="col" class="right">${name}</th>`)}</tr></thead>
    <tbody>${points.map((point) => row(step === "hour" ? point.at.slice(0, 16).replace("T", " ") : point.at.slice(0, 10), point))}</tbody>
    <tfoot>${row("all", total)}</tfoot>
  </table></div>`;
}
