// Requests to the REST API, with the key of this tab. A refused request throws a Problem.
import { authorization } from "../session.js";

// The address of a path of the API: the pages can be behind a proxy that adds a path prefix.
const ROOT = new URL("../../", import.meta.url);
const addressOf = (path) => new URL(path.slice(1), ROOT);

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.error || `status ${status}`);
    Object.assign(this, { status, hint: body.hint, code: body.code });
  }
}

// The caller, from GET /v1/me: its tenant and its scopes.
export const me = { tenant: "", scopes: [] };
export const can = (scope) => me.scopes.includes(scope);

// sent: the headers of the request. A late refusal of another key does not sign this one out.
function refuse(status, text, sent) {
  let body = {};
  try { body = JSON.parse(text); } catch { body = { detail: text.slice(0, 300) || `status ${status}` }; }
  const problem = new Problem(status, body);
  const isOurs = sent.Authorization === authorization().Authorization;
  if (status === 401 && isOurs) window.dispatchEvent(new CustomEvent("sign-in", { detail: sent.Authorization ? problem.message : "" }));
  return problem;
}

export async function send(method, path, body, headers = {}) {
  const type = body === undefined ? {} : { "Content-Type": "application/json" };
  const sent = { ...type, ...authorization(), ...headers };
  const response = await fetch(addressOf(path), { method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body) });
  const isReadiness = path === "/readyz" && response.headers.get("Content-Type") === "application/json";  // 503 with reasons
  if (!response.ok && !isReadiness) throw refuse(response.status, await response.text(), sent);
  return response;
}

export const get = async (path) => (await send("GET", path)).json();
export const getText = async (path) => (await send("GET", path)).text();
export const change = async (method, path, body, headers) => {
  const response = await send(method, path, body, headers);
  return response.status === 204 ? null : response.json();
};
// Save the body of a reply as a file: a link could not send the key.
export const download = async (path, name) => {
  const url = URL.createObjectURL(await (await send("GET", path)).blob());
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
};
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
export const segment = encodeURIComponent;

// Send a file as a raw body. XMLHttpRequest, because fetch does not report progress.
export function upload(path, file, key, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", addressOf(path));
    const headers = { ...authorization(), "Content-Type": "application/octet-stream", "Idempotency-Key": key };
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.onload = () => (request.status < 300 ? resolve(JSON.parse(request.responseText)) : reject(refuse(request.status, request.responseText, headers)));
    request.onerror = () => reject(new Error("the connection was lost: send the file again"));
    request.send(file);
  });
}

// Read server-sent events until the stream of the job ends. fetch, because EventSource sends no key.
export async function readEvents(path, onEvent, signal) {
  let last = "";
  while (!signal.aborted) {
    try {
      const sent = { ...authorization(), ...(last && { "Last-Event-ID": last }) };
      const response = await fetch(addressOf(path), { headers: sent, signal });
      if (response.status === 204) return;
      if (!response.ok) throw refuse(response.status, await response.text(), sent);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const blocks = (rest + part.value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const fields = Object.fromEntries(block.split("\n").filter((line) => line.includes(": ")).map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
          if (!fields.data) continue;
          last = fields.id;
          onEvent(fields.event, JSON.parse(fields.data));
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Problem && error.status < 500) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 1500));  // the service drains or is away
  }
}
