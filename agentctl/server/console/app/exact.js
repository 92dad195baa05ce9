// JSON with integers of any size: what an approver sees is what the call gets. JSON.parse would
// round those above 2^53.

import { newKey } from "./api.js";

// No text of a server can contain it.
const MARK = newKey();
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const WRITTEN = new RegExp(`"${MARK}(-?\\d+)"`, "g");

/** Return the value of a JSON text, with a BigInt for an integer that a number cannot hold. */
export function readExact(text) {
  const marked = text.replace(TOKEN, (token) =>
    /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token,
  );
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

export function writeExact(value, indent) {
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? MARK + each : each), indent);
  return text.replace(WRITTEN, "$1");
}
