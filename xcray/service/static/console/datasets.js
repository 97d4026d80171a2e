// Data sets: upload with progress, the report of invalid lines, sizes.
import { html, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, newKey, segment, upload } from "./api.js";
import { Picture } from "./pictures.js";
import { Button, bytes, count, Details, Field, Pager, Status, Table, Trouble, useLoaded, when } from "./parts.js";

const FORMATS = ["jsonl", "csv", "tsv", "svmlight", "xc", "parquet", "npz"];

export function Datasets() {
  const [page, setPage] = useState([]);  // tokens of the pages up to the one shown
  const token = page[page.length - 1];
  const [list, error] = useLoaded(() => get(`/v1/datasets?limit=50${token ? `&page_token=${segment(token)}` : ""}`), [token], 3);
  return html`<h1>Data sets</h1><${Upload} /><h2>All data sets</h2><${Trouble} error=${error} />
    ${list && html`<${Table} caption="Data sets" columns=${["name", "status", "rows#", "labels#", "features#", "created (UTC)"]} empty="There is no data set yet: upload a file."
      rows=${list.datasets.map((set) => [html`<a href=${`#/datasets/${set.id}`}>${set.name}</a>`, html`<${Status} value=${set.status} />`,
        count(set.stats.splits?.train?.n_rows), count(set.stats.n_labels), count(set.stats.n_features), when(set.created)])} />
      <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} />`}`;
}

// Fill in the name and the format that the name of a file suggests.
function suggest({ target: { form, files } }) {
  const [stem, ...endings] = (files[0]?.name ?? "").toLowerCase().split(".");
  const [name, format] = ["name", "format"].map((field) => form.elements.namedItem(field));
  if (!name.value) name.value = stem.replace(/[^a-z0-9_-]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 64);
  format.value = FORMATS.find((each) => endings.includes(each)) ?? format.value;
}

function Upload() {
  const last = useRef({});  // the latest request: repeated after an error, it has the same key
  const [sent, setSent] = useState(null);  // share of the file, null: nothing is being sent
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const fields = new FormData(event.target), file = fields.get("file");
    const options = { test_fraction: Number(fields.get("held_out")) };
    const query = new URLSearchParams({ name: fields.get("name"), format: fields.get("format"), options: JSON.stringify(options) });
    const request = [query, file.name, file.size, file.lastModified].join();
    if (request !== last.current.request) last.current = { request, key: newKey() };
    setError(null);
    setSent(0);
    try {
      location.hash = `#/datasets/${(await upload(`/v1/datasets?${query}`, file, last.current.key, setSent)).id}`;
    } catch (problem) {
      setError(problem);
    }
    setSent(null);
  };
  return html`<form onSubmit=${submit} aria-label="Upload"><div class="fields">
      <${Field} label="File" id="file"><input id="file" name="file" type="file" required onChange=${suggest} /><//>
      <${Field} label="Name" id="name" help="Lower-case letters, digits, . _ -"><input id="name" name="name" required maxlength="64" /><//>
      <${Field} label="Format" id="format"><select id="format" name="format">${FORMATS.map((name) => html`<option value=${name}>${name}</option>`)}</select><//>
      <${Field} label="Share of rows held out" id="held_out" help="To measure accuracy; 0: none"><input id="held_out" name="held_out" type="number" min="0" max="0.9" step="any" value="0.1" /><//>
    </div><${Button} type="submit" class="main" scope="submit" disabled=${sent !== null}>Upload<//>
    ${sent !== null && html`<progress max="1" value=${sent} aria-label="upload"></progress> ${Math.round(100 * sent)} %`}<${Trouble} error=${error} /></form>`;
}

export function Dataset({ id }) {
  const [failed, setFailed] = useState(null);
  const [set, error] = useLoaded(() => get(`/v1/datasets/${segment(id)}`), [id], 2);
  if (!set) return html`<h1>Data set</h1><${Trouble} error=${error} />`;
  const { stats } = set;
  const remove = async () => {
    if (!confirm(`Delete the data set ${set.name} (${set.id}) and its files?`)) return;
    try {
      await change("DELETE", `/v1/datasets/${segment(id)}`);
      location.hash = "#/datasets";
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<h1>Data set ${set.name}</h1><${Trouble} error=${error} /><p role="status">Status: <${Status} value=${set.status} /></p>
    <${Details} of=${[["Id", set.id], ["Created (UTC)", when(set.created)], ["Format", stats.format], ["Labels", count(stats.n_labels)], ["Features", count(stats.n_features)],
      ["Size", stats.bytes && bytes(stats.bytes)], ["Skipped rows", count(stats.skipped)], ["Text", stats.text === undefined ? "" : stats.text ? "yes" : "no"]]} />
    ${stats.problem && html`<h2>Why it failed</h2><${Trouble} error=${stats.problem} />`}
    ${stats.errors && html`<h2>Invalid lines</h2><p>Correct these lines and upload the file again. At most 20 are listed.</p>
      <${Table} caption="Invalid lines" columns=${["file", "line#", "column#", "error", "fix"]} rows=${stats.errors.map((bad) => [bad.file, count(bad.line), count(bad.column), bad.message, bad.hint])} />`}
    ${stats.warnings?.length > 0 && html`<h2>Warnings</h2><ul>${stats.warnings.map((warning) => html`<li>${warning.message}</li>`)}</ul>`}
    ${stats.splits && html`<h2>Statistics</h2><${Table} caption="Statistics" columns=${["part", "rows#", "features per row#", "labels per row#"]} rows=${Object.entries(stats.splits).map(([part, split]) => [
      part, count(split.n_rows), (split.x_nnz / Math.max(1, split.n_rows)).toFixed(1), (split.y_nnz / Math.max(1, split.n_rows)).toFixed(2)])} />
      <p>Training rows per label: ${(stats.splits.train.y_nnz / Math.max(1, stats.n_labels)).toFixed(1)} on average.</p><${Histograms} id=${id} />`}
    <p>${set.status === "READY" && html`<a href=${`#/train?dataset=${segment(set.id)}&model=${segment(set.name)}`}>Train on it</a> `}
      <${Button} scope="submit" onClick=${remove}>Delete<//></p><${Trouble} error=${failed} />`;
}

// Histograms and example rows.
function Histograms({ id }) {
  const [of, error] = useLoaded(() => get(`/v1/datasets/${segment(id)}/histograms`), [id]);
  if (!of) return html`<${Trouble} error=${error} />`;
  return html`<${Picture} path=${`/v1/datasets/${segment(id)}/picture`} />
    ${Object.entries(of.parts).map(([part, { examples }]) => html`<h2>Example rows: ${part}</h2><${Table} caption=${`Example rows: ${part}`} columns=${["row#", "labels", "largest features"]} rows=${examples.map((row) => [count(row.row),
      `${row.labels.join(", ")}${row.n_labels > row.labels.length ? `, ... (${count(row.n_labels)})` : ""}`,
      `${row.features.map(({ feature, value }) => `${feature} ${Number(value.toPrecision(3))}`).join(", ")}${row.n_features > row.features.length ? `, ... (${count(row.n_features)})` : ""}`])} />`)}`;
}
