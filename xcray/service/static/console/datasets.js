// Data sets: the upload, the report of invalid lines, sizes.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, segment } from "./api.js";
import { Picture } from "./pictures.js";
import { Button, bytes, count, Details, Pager, Status, Table, Trouble, useLoaded, when } from "./parts.js";
import { formError, inFormWords, Upload } from "./upload.js";

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
    ${stats.problem && html`<h2>Why it failed</h2><${Trouble} error=${formError(stats.problem)} />`}
    ${stats.errors && html`<h2>Invalid lines</h2><p>Correct these lines and upload the file again. At most 20 are listed.</p>
      <${Table} caption="Invalid lines" columns=${["file", "line#", "column#", "error", "fix"]} rows=${stats.errors.map((bad) => [bad.file, count(bad.line), count(bad.column), inFormWords(bad.message), inFormWords(bad.hint)])} />`}
    ${stats.warnings?.length > 0 && html`<h2>Warnings</h2><ul>${stats.warnings.map((warning) => html`<li>${inFormWords(warning.message)}</li>`)}</ul>`}
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
