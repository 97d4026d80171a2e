// Parts that several pages use. Values are set as text, never as markup.
import { html, useEffect, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { missingScopes } from "./api.js";

export const count = (n) => (n === undefined || n === null ? "" : n.toLocaleString("en"));
export const bytes = (n) => {
  const power = n > 0 ? Math.min(5, Math.floor(Math.log2(n) / 10)) : 0;
  return `${(n / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
};
export const duration = (s) => (s === null || s === undefined ? "unknown" : s < 0.0995 ? `${Number((1000 * s).toPrecision(2))} ms`
  : s < 90 ? `${s.toFixed(s < 10 ? 1 : 0)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${count(Math.round(s / 86400))} days`);
export const when = (text) => (text ? `${text.slice(0, 10)} ${text.slice(11, 19)}` : "");

// Call `load` now and every `seconds` (0: once); return [value, error, reload].
export function useLoaded(load, keys, seconds = 0) {
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let alive = true, timer = 0;
    const run = async () => {
      try {
        const value = await load();
        if (alive) setState({ value });
      } catch (error) {
        if (alive) setState((old) => ({ value: old.value, error }));
      }
      if (alive && seconds) timer = setTimeout(run, seconds * 1000);
    };
    run();
    return () => { alive = false; clearTimeout(timer); };
  }, [...keys, turn]);
  return [state.value, state.error, () => setTurn((n) => n + 1)];
}

// The phase of a job, and what it waits for: the note before anything is counted, and compilation.
export const phaseOf = ({ status, phase, progress: { total, note } }) => (status === "RUNNING" && note && (!total || note.startsWith("compiling")) ? `${phase}: ${note}` : phase);
export const Status = ({ value }) => html`<span class=${value}>${value}</span>`;
export const Trouble = ({ error }) => error && html`<div class="problem" role="alert">${error.message}${error.hint && html`<br />${error.hint}`}</div>`;
export const Details = ({ of }) => html`<dl class="details">${of.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

// columns: names, with a final "#" for numbers. rows: lists of cells.
export const Table = ({ caption, columns, rows, empty }) => (rows.length === 0 ? html`<p>${empty || "none"}</p>` : html`
  <div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <thead><tr>${columns.map((name) => html`<th scope="col" class=${name.endsWith("#") ? "number" : ""}>${name.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((cell, i) => html`<td class=${columns[i].endsWith("#") ? "number" : ""}>${cell}</td>`)}</tr>`)}</tbody>
  </table></div>`);

// A control that the service refused to this key is disabled and says why.
export const Button = ({ scope, disabled, label, children, ...rest }) => {
  const refused = missingScopes.has(scope);
  return html`<button type="button" aria-label=${label} ...${rest} disabled=${disabled || refused} title=${refused ? `needs a key with the scope ${scope}` : undefined}>${children}</button>`;
};

// Buttons of a list. page: tokens of the pages up to the one shown; next: token of the next page.
export const Pager = ({ page, setPage, next, names = ["Newer", "Older"] }) => html`<p>${page.length > 0 && html`<${Button} onClick=${() => setPage(page.slice(0, -1))}>${names[0]}<//>`}
  ${next && html`<${Button} onClick=${() => setPage([...page, next])}>${names[1]}<//>`}</p>`;

export const Field = ({ label, help, id, children }) => html`<div class="field"><label for=${id}>${label}</label>${children}${help && html`<small>${help}</small>`}</div>`;

// The options of a training that a job has, if they are not the defaults.
export function setOptions(declared, job) {
  const { spec } = job, values = { ...spec, ...job, name: job.name === spec.name ? null : job.name };
  return Object.fromEntries(declared.map((of) => [of.name, values[of.name]]).filter(([, value], i) => (value ?? null) !== null && (declared[i].set_by_server || value !== declared[i].default)));
}
