// The name of the state of a run for people: the same table as agentctl/records/phase.py.
// Both are tested with tests/records/phases.json.

const WORK_GOES_ON = "work goes on";

const LOOKS = {
  queued: ["◌", ".", "dim"],
  running: ["●", "*", "blue"],
  stopping: ["◐", "~", "yellow"],
  stopped: ["■", "#", "grey"],
  completed: ["✓", "+", "green"],
  failed: ["✗", "x", "red"],
};

const NAMES = {
  PENDING: "queued",
  RUNNING: "running",
  CANCELLED: "stopped",
  COMPLETED: "completed",
  ERROR: "failed",
};

/** Return true if a run has a final status. */
export function isFinal(run) {
  return ["COMPLETED", "ERROR", "CANCELLED"].includes(run.status);
}

/** Return true if the run and all of its work have ended. */
export function isAtRest(run) {
  return isFinal(run) && run.stopped_at != null;
}

/** Return `{name, glyph, ascii, words, color, warning, sentence}` of a run at a time in ms. */
export function describePhase(run, at = Date.now()) {
  const status = String(run.status || "");
  let name = Object.hasOwn(NAMES, status) ? NAMES[status] : "unknown";
  if ((name === "queued" || name === "running") && run.cancel_requested_at != null) {
    name = "stopping";
  }
  const ended = ["stopped", "completed", "failed"].includes(name) && run.finished_at != null;
  const warning = ended && run.stopped_at == null ? WORK_GOES_ON : "";
  const [glyph, ascii, color] = LOOKS[name] || ["?", "?", "dim"];
  const words = name === "unknown" ? status.toLowerCase() || name : name;
  const sentence = findFacts(run, name, warning, at).filter(Boolean).join("; ");
  return { name, glyph, ascii, words, color, warning, sentence };
}

/** Return a clause about the work of an ended run: `tool nap has not returned`. */
export function describeHolding(holding) {
  if (!holding || !holding.length) return "its work may still run";
  const tools = holding.filter((each) => each !== "runner");
  const parts = [];
  if (tools.length) parts.push(`${tools.length === 1 ? "tool" : "tools"} ${tools.join(", ")}`);
  if (tools.length < holding.length) parts.push("the code of the agent");
  return `${parts.join(" and ")} ${holding.length === 1 ? "has" : "have"} not returned`;
}

function findFacts(run, name, warning, at) {
  const facts = [];
  const error = run.error || {};
  if (name === "failed" && error.code) {
    facts.push([error.code, error.detail].filter(Boolean).join(": "));
  }
  if (name === "stopping") {
    facts.push(`cancel requested${formatAge(run.cancel_requested_at, at)}${by(run)}`);
  } else if (run.cancel_requested_at != null) {
    if (name === "completed" || name === "failed") {
      facts.push(`${name} before the cancel took effect`);
    }
    facts.push(`cancel requested${formatTime(run.cancel_requested_at, at)}${by(run)}`);
  }
  return facts.concat(findEnd(run, name, warning, at));
}

function findEnd(run, name, warning, at) {
  const ended = parse(run.finished_at);
  const stopped = parse(run.stopped_at);
  if (warning) {
    const since = ended === null ? "" : ` (${formatWhole(at - ended)})`;
    return [
      `the run ended${formatTime(run.finished_at, at)}`,
      `${describeHolding(run.holding)}${since}`,
    ];
  }
  if (run.late_result === "dropped") {
    const after =
      stopped === null || ended === null ? "" : ` after ${formatWhole(stopped - ended)}`;
    return [
      `the run ended${formatTime(run.finished_at, at)}`,
      `a late result was dropped${after}`,
    ];
  }
  return name === "stopped" && stopped !== null
    ? [`stopped${formatTime(run.stopped_at, at)}`]
    : [];
}

function by(run) {
  return run.cancel_requested_by ? ` by ${run.cancel_requested_by}` : "";
}

function parse(moment) {
  const parsed = typeof moment === "string" ? Date.parse(moment) : NaN;
  return Number.isNaN(parsed) ? null : parsed;
}

function formatTime(moment, at) {
  const parsed = parse(moment);
  if (parsed === null) return "";
  const [date, time] = new Date(parsed).toISOString().split("T");
  const today = new Date(at).toISOString().split("T")[0];
  return date === today ? ` ${time.slice(0, 11)}` : ` ${date} ${time.slice(0, 11)}`;
}

function formatAge(moment, at) {
  const parsed = parse(moment);
  return parsed === null ? "" : ` ${formatWhole(at - parsed)} ago`;
}

function formatWhole(milliseconds) {
  const whole = Math.floor(Math.max(milliseconds, 0) / 1000);
  const unit = whole < 60 ? 1 : whole < 86400 ? 60 : 3600;
  return formatSpan(whole - (whole % unit));
}

/** Return a time span in one or two units: `45 s`, `12 min`, `3 h 5 min`, `9 d`. */
export function formatSpan(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (minutes < 1440) return joinUnits(Math.floor(minutes / 60), "h", minutes % 60, "min");
  return joinUnits(Math.floor(hours / 24), "d", hours % 24, "h");
}

function joinUnits(large, name, small, smallName) {
  return small ? `${large} ${name} ${small} ${smallName}` : `${large} ${name}`;
}
