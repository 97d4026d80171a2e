// The list of models: the newest first, or sorted by P@1 or size; two to five of them are compared.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { get, segment } from "./api.js";
import { bytes, count, Pager, percent, Table, Time, Trouble, useLoaded } from "./parts.js";

const ORDERS = { created: "newest", "P@1": "best P@1", size: "largest", name: "name" };
export const MAX_COMPARED = 5;

// "prod: version 3", or its shares: "prod: 90 % 3, 10 % 4; shadow 5"
export function traffic(model, alias) {
  const split = model.splits[alias];
  if (!split) return `version ${model.aliases[alias]}`;
  const shares = split.split.map((share) => `version ${share.version}: ${(100 * share.weight).toFixed(0)} %`).join(", ");
  return split.shadow ? `${shares}, shadow ${split.shadow.version}: copies of ${percent(split.shadow.weight)}` : shares;
}

export const aliasesOf = (model) => Object.keys(model.aliases).filter((alias) => alias !== "latest");

function row(model, tick) {
  const { name, versions, latest } = model;
  const link = html`<a href=${`#/models/${segment(name)}`}>${name}</a>`;
  const known = { show: link, by: name };
  if (!latest) return ["", known, "", "", "", "cannot be read", "", "", count(versions.length)];
  const aliases = aliasesOf(model).map((alias) => `${alias}: ${traffic(model, alias)}`).join("; ");
  return [tick(`${name}:${latest.version}`), known, { show: percent(latest.measures["P@1"]), by: latest.measures["P@1"] },
    { show: count(latest.n_labels), by: latest.n_labels }, { show: bytes(latest.n_bytes), by: latest.n_bytes },
    latest.solver, { show: html`<${Time} at=${latest.created} />`, by: latest.created }, aliases, { show: count(versions.length), by: versions.length }];
}

export function Models() {
  const [search, setSearch] = useState("");
  const [sort, setSort] = useState("created");
  const [page, setPage] = useState([]);
  const [chosen, setChosen] = useState([]);
  const query = new URLSearchParams({ limit: 50, sort, ...(search && { contains: search }), ...(page.length && { page_token: page[page.length - 1] }) });
  const [list, error] = useLoaded(() => get(`/v1/models?${query}`), [String(query)], 10);
  const submit = (event) => { event.preventDefault(); setPage([]); setSearch(new FormData(event.target).get("search")); };
  const change = (reference) => setChosen((old) => (old.includes(reference) ? old.filter((each) => each !== reference) : [...old, reference]));
  const tick = (reference) => html`<input type="checkbox" aria-label=${`Compare ${reference}`} checked=${chosen.includes(reference)}
    disabled=${!chosen.includes(reference) && chosen.length >= MAX_COMPARED} onChange=${() => change(reference)} />`;
  return html`<h1>Models</h1>
    <form role="search" onSubmit=${submit} class="bar"><label>Part of the name <input type="search" name="search" /></label> <button>Search</button>
      <label>Sort by <select value=${sort} onChange=${(event) => { setPage([]); setSort(event.target.value); }}>${Object.entries(ORDERS).map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>
      ${list?.total > 1 && (chosen.length < 2 ? html`<span class="note">Tick two to five models to compare them.</span>` : html`<a class="button main" href=${`#/compare?models=${segment(chosen.join(","))}`}>Compare ${chosen.length} models</a>`)}</form>
    <${Trouble} error=${error} />
    ${list && html`<${Table} caption="Models" sortable=${true} columns=${["compare", "name", "P@1#", "labels#", "size#", "solver", "created", "aliases and traffic", "versions#"]}
      empty=${search ? "No model matches." : html`There is no model yet: <a href="#/train">train one</a>.`} rows=${list.models.map((model) => row(model, tick))} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} names=${["Previous", "Next"]} />
    ${list.total > 50 && html`<p class="note">${count(list.total)} models.</p>`}`}`;
}
