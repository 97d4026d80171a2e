// Parts that several pages use. Values are set as text, never as markup.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { can } from "./api.js";

export const count = (n) => (n === undefined || n === null ? "" : n.toLocaleString("en"));
// What the API accepts as the name of a model, data set or tenant, for fields.
export const NAME = "[a-z0-9](?:[a-z0-9_\\-]|\\.(?=[a-z0-9_\\-])){0,63}";
export const percent = (share, digits = 1) => (typeof share === "number" ? `${(100 * share).toFixed(digits)} %` : "");
export const bytes = (n) => {
  const power = n > 0 ? Math.min(5, Math.floor(Math.log2(n) / 10)) : 0;
  return `${(n / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
};
export const duration = (s) => (s === null || s === undefined ? "unknown" : s < 0.0995 ? `${Number((1000 * s).toPrecision(2))} ms`
  : s < 90 ? `${s.toFixed(s < 10 ? 1 : 0)} s` : s < 5400 ? `${Math.round(s / 60)} min` : s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${count(Math.round(s / 86400))} days`);

// A time of the API: local, to the minute, with UTC and seconds under the pointer.
export const Time = ({ at }) => at && html`<time datetime=${at} title=${`${at.slice(0, 10)} ${at.slice(11, 19)} UTC`}>${new Date(at).toLocaleString("sv").slice(0, 16)}</time>`;

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

// Call actions that change something: [error, perform]. perform(action) is true if it succeeded.
export function useAction() {
  const [error, setError] = useState(null);
  const perform = async (action) => {
    setError(null);
    try {
      await action();
      return true;
    } catch (problem) {
      setError(problem);
      return false;
    }
  };
  return [error, perform];
}

// The phase of a job that is not over, and what it waits for: the note before anything is counted, and compilation.
export function phaseOf({ status, phase, progress: { total, note } }) {
  if (!["PENDING", "RUNNING"].includes(status)) return "";
  return status === "RUNNING" && note && (!total || note.startsWith("compiling")) ? `${phase}: ${note.split(": ")[0]}` : phase;
}

export const Status = ({ value, waiting }) => html`<span class=${value}>${value}</span>${waiting && " waits for another build"}`;
export const Trouble = ({ error }) => error && html`<div class="problem" role="alert">${error.message}${error.hint && html`<br />${error.hint}`}</div>`;
export const Refused = ({ scope }) => html`<p class="problem" role="alert">this needs a key with the scope ${scope}</p>`;
export const Details = ({ of }) => html`<dl class="details">${of.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

// Measures of a summary, as large figures with half of their 95 % intervals. P@k of a row is between
// 0 and 1, so its variance is at most p (1 - p), and equal to it for P@1.
export function Figures({ measures = {}, rows }) {
  const shown = ["P@1", "P@3", "P@5"].filter((name) => typeof measures[name] === "number");
  const half = (p) => rows > 0 && ` ± ${(196 * Math.sqrt(p * (1 - p) / rows)).toFixed(1)}`;
  if (!shown.length) return html`<p>Not measured: no rows were held out.</p>`;
  return html`<dl class="figures">${shown.map((name) => html`<div><dt>${name}</dt><dd>${percent(measures[name])}<small>${half(measures[name])}</small></dd></div>`)}</dl>
    <p class="note">On ${rows ? count(rows) : "the"} held-out rows${rows ? "; ± half of the 95 % interval at most" : ""}.</p>`;
}

// All measures of a summary: a row of each name, a column of each k.
export function Measures({ of = {} }) {
  const found = Object.entries(of).filter(([, value]) => typeof value === "number").map(([name, value]) => [...name.split("@"), value]);
  const cuts = [...new Set(found.filter((each) => each.length > 2).map(([, k]) => k))], rank = (name) => (FIRST.indexOf(name) + FIRST.length + 1) % (FIRST.length + 1);
  const names = [...new Set(found.map(([name]) => name))].sort((a, b) => rank(a) - rank(b));
  const cell = (name, k) => percent(found.find((each) => each[0] === name && (each.length > 2 ? each[1] === k : k === cuts[0]))?.at(-1), 2);
  return html`<h2>Measures</h2><${Table} caption="Measures" columns=${["measure", ...(cuts.length ? cuts.map((k) => `k = ${k}#`) : ["value#"])]} empty="None: no rows were held out." rows=${names.map((name) => [name, ...(cuts.length ? cuts : [undefined]).map((k) => cell(name, k))])} />`;
}
const FIRST = ["P", "nDCG", "PSP"];

// Tabs of a page, each with its own address. tabs: {id: name}; path: address of the page.
export function Tabs({ tabs, current, path, query = {} }) {
  const address = (id) => `${path}?${new URLSearchParams({ ...query, tab: id })}`;
  return html`<nav class="tabs" aria-label="Parts of this page">${Object.entries(tabs).map(([id, name]) => html`
    <a href=${address(id)} aria-current=${id === current ? "true" : undefined}>${name}</a>`)}</nav>`;
}

const shown = (cell) => cell?.show ?? cell;
const sortKey = (cell) => cell?.by ?? (typeof cell === "object" ? null : cell) ?? null;
function compareCells(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

// columns: names, with a final "#" for numbers. rows: lists of cells. sortable: the rows shown are
// sorted by a click on a column; a cell is then a value, or {show, by} with the value to sort by.
export function Table({ caption, columns, rows, empty, sortable = false }) {
  const [order, setOrder] = useState(null);  // [column, 1 or -1]
  if (rows.length === 0) return html`<p>${empty || "none"}</p>`;
  const sorted = order === null ? rows : [...rows].sort((a, b) => order[1] * compareCells(sortKey(a[order[0]]), sortKey(b[order[0]])));
  const direction = (i) => (order?.[0] === i ? order[1] : 0);
  const toggle = (i) => setOrder([i, direction(i) ? -direction(i) : columns[i].endsWith("#") ? -1 : 1]);
  const head = (name, i) => (sortable && name ? html`<button type="button" class="sort" onClick=${() => toggle(i)}>${name}${["▾", "", "▴"][direction(i) + 1]}</button>` : name);
  const sort = (i) => ["descending", undefined, "ascending"][direction(i) + 1];
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table class=${columns.length < 5 ? "narrow" : ""}>
    <thead><tr>${columns.map((name, i) => html`<th scope="col" aria-sort=${sort(i)} class=${name.endsWith("#") ? "number" : ""}>${head(name.replace("#", ""), i)}</th>`)}</tr></thead>
    <tbody>${sorted.map((cells) => html`<tr>${cells.map((cell, i) => html`<td class=${columns[i].endsWith("#") ? "number" : ""}>${shown(cell)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

export const focusMain = () => document.querySelector("main")?.focus();

// A control that the key of this tab cannot use is disabled and says why. One that is removed while it has the
// focus, as with the row that it deletes, leaves the focus to the page.
export const Button = ({ scope, disabled, label, children, ...rest }) => {
  const refused = scope !== undefined && !can(scope), node = useRef(null);
  useLayoutEffect(() => () => {
    if (document.activeElement === node.current) setTimeout(() => document.activeElement === document.body && focusMain());
  }, []);
  return html`<button ref=${node} type="button" aria-label=${label} ...${rest} disabled=${disabled || refused} title=${refused ? `needs a key with the scope ${scope}` : undefined}>${children}</button>`;
};

// Rare and destructive actions.
export const Menu = ({ children }) => html`<details class="menu"><summary>More</summary><div>${children}</div></details>`;

// Buttons of a list. page: tokens of the pages up to the one shown; next: token of the next page.
export const Pager = ({ page, setPage, next, names = ["Newer", "Older"] }) => html`<p>${page.length > 0 && html`<${Button} onClick=${() => setPage(page.slice(0, -1))}>${names[0]}<//>`}
  ${next && html`<${Button} onClick=${() => setPage([...page, next])}>${names[1]}<//>`}</p>`;

export const Field = ({ label, help, id, children }) => html`<div class="field"><label for=${id}>${label}</label>${children}${help && html`<small>${help}</small>`}</div>`;

// The options of a training that a job has, if they are not the defaults.
export function setOptions(declared, job) {
  const { spec } = job, values = { ...spec, ...job, name: job.name === spec.name ? null : job.name };
  return Object.fromEntries(declared.map((of) => [of.name, values[of.name]]).filter(([, value], i) => (value ?? null) !== null && (declared[i].set_by_server || value !== declared[i].default)));
}
