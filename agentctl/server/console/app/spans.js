// The spans of a run as rows: model calls, tools, members with theirs, steps and waits, with their times.

import { call, isAtRest, isFinal, nameOf, path, withQuery } from "./api.js";
import { useEffect, useRef, useState } from "./ui.js";
import { writeExact } from "./exact.js";

const DEPTH = 5;
const IDLE = 0.04;

// Bars need no texts; those of one are fetched when it is opened.
export const placeOf = (run, db, cut = 1) => withQuery(path`/runs/${run}`, { db_id: db, view: "items", cut });

/** Fetch the runs of members, so that their spans stand below the member. */
export function useMembers(run, db) {
  const [members, setMembers] = useState(new Map());
  const open = !isAtRest(run);
  const known = useRef(new Map());
  const stamp = writeExact([run.member_runs, run.finished_at]);
  useEffect(() => {
    let gone = false;
    const load = async (ids, depth) => {
      for (const id of ids) {
        if (gone || depth > DEPTH) return;
        let member = known.current.get(id);
        if (!member || !isAtRest(member)) {
          member = await call("GET", placeOf(id, db)).catch(() => null);
          if (member === null) continue;
          known.current.set(id, member);
        }
        await load(member.member_runs || [], depth + 1);
      }
      if (!gone && depth === 1) setMembers(new Map(known.current));
    };
    load(run.member_runs || [], 1);
    const timer = open ? setInterval(() => load(run.member_runs || [], 1), 1500) : null;
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [stamp, open]);
  return members;
}

/** Return the rows of a run: spans in the order of their starts, those of members below them. */
export function rowsOf(run, members, names, now, depth = 0) {
  const rows = [];
  const end = isFinal(run) ? Date.parse(run.finished_at) : now;
  const tools = new Map(run.items.map((item) => [item.tool_call_id, item]));
  const told = new Set();
  const spans = [...(run.spans || [])].sort((a, b) => (a.started_at < b.started_at ? -1 : 1));
  const steps = new Set(spans.filter((span) => span.kind === "step").map((span) => span.id));
  for (const span of spans) {
    const tool = tools.get(span.id);
    const member = span.kind === "member" ? members.get(span.member_run_id) : null;
    // The call of a tool that delegates and the member have the same times.
    if (span.kind === "tool" && span.member_run_id) continue;
    if (span.kind === "member") told.add(span.member_run_id);
    const below = steps.has(span.parent) ? 1 : 0;
    rows.push({
      key: `${run.run_id}/${span.id}`, kind: span.kind, depth: depth + below, span, tool, run: member || run,
      name: member ? nameOf(member, names) : span.name, failed: span.status === "failed",
      start: Date.parse(span.started_at), first: span.first_token_at ? Date.parse(span.first_token_at) : null,
      end: span.finished_at ? Date.parse(span.finished_at) : end, open: !span.finished_at && !isFinal(run),
    });
    if (member && depth < DEPTH) rows.push(...rowsOf(member, members, names, now, depth + below + 1));
  }
  addPauses(rows, run, depth, end);
  for (const id of run.member_runs || []) {
    const member = members.get(id);
    if (!member || told.has(id)) continue;
    rows.push({
      key: id, kind: "member", depth, run: member, name: nameOf(member, names), failed: member.status === "ERROR",
      start: Date.parse(member.started_at || member.created_at), first: null,
      end: member.finished_at ? Date.parse(member.finished_at) : now, open: !isFinal(member),
    });
    if (depth < DEPTH) rows.push(...rowsOf(member, members, names, now, depth + 1));
  }
  return rows;
}

export function union(rows) {
  const merged = [];
  for (const { start, end } of [...rows].sort((a, b) => a.start - b.start)) {
    const last = merged.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return { merged, total: merged.reduce((sum, [start, end]) => sum + end - start, 0) };
}

/** Return a function from a time to a part of the width, with long idle times cut out if asked. */
export function scaleOf(from, to, rows, collapsed) {
  const whole = Math.max(1, to - from);
  if (!collapsed) return (time) => Math.min(1, Math.max(0, (time - from) / whole));
  const busy = union(rows.filter((row) => row.kind !== "member" && row.kind !== "step")).merged;
  const cuts = [];
  let at = from;
  for (const [start, end] of [...busy, [to, to]]) {
    if (start - at > whole * IDLE) cuts.push([at, start]);
    at = Math.max(at, end);
  }
  const kept = whole - cuts.reduce((sum, [start, end]) => sum + (end - start) * 0.9, 0);
  return (time) => {
    let moved = Math.min(to, Math.max(from, time)) - from;
    for (const [start, end] of cuts) moved -= Math.max(0, Math.min(time, end) - start) * 0.9;
    return Math.min(1, Math.max(0, moved / kept));
  };
}

/** Add the pauses of a run to the rows of its timeline, in the order of their starts. */
function addPauses(rows, run, depth, end) {
  for (const approval of (run.approvals || []).filter((each) => each.run_id === run.run_id)) {
    const start = Date.parse(approval.created_at);
    const next = rows.findIndex((row) => row.depth === depth && row.start > start);
    const open = approval.status === "pending";
    rows.splice(next < 0 ? rows.length : next, 0, {
      key: approval.approval_id, kind: "pause", depth, run, approval, start, first: null, failed: false, open,
      name: `${approval.tool_name} · ${open ? "waits" : approval.status}`,
      end: approval.decided_at ? Date.parse(approval.decided_at) : end,
    });
  }
}
