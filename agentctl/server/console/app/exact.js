// JSON with integers of any size. A number of JavaScript holds 53 bits, so `JSON.parse` changes the last
// digits of longer ones, such as an id of 19 digits. Everything that comes from a server is read and
// shown with these two functions.

// No text of a server can contain it. `crypto.randomUUID` needs HTTPS; this does not.
const MARK = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");
const LONG = /\d{16}/;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const WRITTEN = new RegExp(`"${MARK}(-?\\d+)"`, "g");

/** Return the value of a JSON text, with a BigInt for an integer that a number cannot hold. */
export function readExact(text) {
  // Most texts have no such integer, and this test is much faster than the two functions.
  if (!LONG.test(text)) return JSON.parse(text);
  const marked = text.replace(TOKEN, (token) =>
    /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token,
  );
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

/** Return the JSON text of a value, which may have a BigInt anywhere. */
export function writeExact(value, indent) {
  const text = JSON.stringify(value, (_, each) => (typeof each === "bigint" ? MARK + each : each), indent);
  return text?.replace(WRITTEN, "$1");
}
