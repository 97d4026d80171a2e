// Data sets: the list, the upload, and one data set: how it was read, its rows, and the models trained on it.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, newKey, segment } from "./api.js";
import { secondsOf } from "./jobs.js";
import { Picture } from "./pictures.js";
import { Button, bytes, count, Details, duration, Menu, Pager, percent, Status, Table, Tabs, Time, Trouble, useAction, useLoaded } from "./parts.js";
import { formError, inFormWords, Upload } from "./upload.js";

export function Datasets() {
  const [page, setPage] = useState([]);  // tokens of the pages up to the one shown
  const [isOpen, setOpen] = useState(false);
  const token = page[page.length - 1];
  const [list, error] = useLoaded(async () => {
    const found = await get(`/v1/datasets?limit=50${token ? `&page_token=${segment(token)}` : ""}`);
    if (!found.datasets.length) setOpen(true);
    return found;
  }, [token], 3);
  const row = (set) => [{ show: html`<a href=${`#/datasets/${set.id}`}>${set.name}</a>`, by: set.name }, html`<${Status} value=${set.status} waiting=${set.stats.waiting} />`,
    count(set.stats.splits?.train?.n_rows), count(set.stats.n_labels), count(set.stats.n_features), { show: html`<${Time} at=${set.created} />`, by: set.created },
    set.status === "READY" && html`<a href=${`#/train?dataset=${segment(set.id)}&model=${segment(set.name)}`}>Train on it</a>`];
  const isEmpty = list?.datasets.length === 0;
  return html`<h1>Data sets</h1><${Trouble} error=${error} />
    ${list && !isEmpty && html`<p><${Button} class="main" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>Upload a file<//></p>`}
    ${isEmpty && html`<p>A data set is a file of texts with their labels. Upload one, or try the demo data.</p><${DemoData} />`}
    ${list && isOpen && html`<${Upload} />`}
    ${list && !isEmpty && html`<${Table} caption="Data sets" columns=${["name", "status", "rows#", "labels#", "features#", "created", "train"]} rows=${list.datasets.map(row)} />
      <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} />`}`;
}

// Build the data set that every installation can make: the documentation of Python.
export function DemoData() {
  const [error, perform] = useAction();
  const build = () => perform(async () => {
    const made = await change("POST", "/v1/datasets", { name: "pydocs", format: "pydocs" }, { "Idempotency-Key": newKey() });
    location.hash = `#/datasets/${made.id}`;
  });
  return html`<p><${Button} scope="submit" onClick=${build}>Use demo data<//> The documentation of the installed Python, about 60,000 texts. Building takes a minute or more.</p><${Trouble} error=${error} />`;
}

const TABS = { rows: "Rows", runs: "Models trained on it", details: "Details" };

export function Dataset({ id, query }) {
  const [failed, perform] = useAction();
  const [set, error] = useLoaded(() => get(`/v1/datasets/${segment(id)}`), [id], 2);
  if (!set) return html`<h1>Data set</h1><${Trouble} error=${error} />`;
  const { stats } = set, tab = query.tab in TABS ? query.tab : "rows";
  const remove = async () => {
    if (!confirm(`Delete the data set ${set.name} (${set.id}) and its files?`)) return;
    if (await perform(() => change("DELETE", `/v1/datasets/${segment(id)}`))) location.hash = "#/datasets";
  };
  return html`<h1>Data set ${set.name}</h1><${Trouble} error=${error} /><p role="status">Status: <${Status} value=${set.status} waiting=${stats.waiting} /></p>
    ${stats.problem && html`<h2>Why it failed</h2><${Trouble} error=${formError(stats.problem)} />`}<${Invalid} errors=${stats.errors} />
    ${stats.warnings?.length > 0 && html`<ul>${stats.warnings.map((warning) => html`<li class="problem">${inFormWords(warning.message)}</li>`)}</ul>`}
    <p class="bar">${set.status === "READY" && html`<a class="button main" href=${`#/train?dataset=${segment(set.id)}&model=${segment(set.name)}`}>Train on it</a> `}
      <${Menu}><${Button} scope="submit" onClick=${remove}>Delete<//><//></p><${Trouble} error=${failed} />
    <${Details} of=${[["Training rows", count(stats.splits?.train?.n_rows)], ["Held-out rows", count(stats.splits?.test?.n_rows)], ["Labels", count(stats.n_labels)], ["Features", count(stats.n_features)],
      ["Skipped rows", count(stats.skipped)], ["Size", stats.bytes && bytes(stats.bytes)], ["Created", html`<${Time} at=${set.created} />`]]} />
    ${stats.splits && html`<${Tabs} tabs=${TABS} current=${tab} path=${`#/datasets/${segment(id)}`} />
      ${tab === "rows" ? html`<${Rows} id=${id} />` : tab === "runs" ? html`<${Runs} id=${id} />` : html`<${Facts} set=${set} />`}`}`;
}

const Invalid = ({ errors }) => errors && html`<h2>Invalid lines</h2><p>Correct these lines and upload the file again. At most 20 are listed.</p>
  <${Table} caption="Invalid lines" columns=${["file", "line#", "column#", "error", "fix"]} rows=${errors.map((bad) => [bad.file, count(bad.line), count(bad.column), inFormWords(bad.message), inFormWords(bad.hint)])} />`;

function Facts({ set: { id, stats } }) {
  return html`<h2>Statistics</h2><${Table} caption="Statistics" columns=${["part", "rows#", "features per row#", "labels per row#"]} rows=${Object.entries(stats.splits).map(([part, split]) => [
      part, count(split.n_rows), (split.x_nnz / Math.max(1, split.n_rows)).toFixed(1), (split.y_nnz / Math.max(1, split.n_rows)).toFixed(2)])} />
    <p>Training rows per label: ${(stats.splits.train.y_nnz / Math.max(1, stats.n_labels)).toFixed(1)} on average.</p>
    <${Details} of=${[["Id", id], ["Format", stats.format], ["SHA-256", stats.content_hash && `${stats.content_hash.slice(0, 16)}...`]]} />`;
}

const MAX_TEXT = 500;  // characters of an example that the service sends

// The picture of the rows, and example rows with their texts.
function Rows({ id }) {
  const [of, error] = useLoaded(() => get(`/v1/datasets/${segment(id)}/histograms`), [id]);
  if (!of) return html`<${Trouble} error=${error} />`;
  const labels = (row) => `${row.labels.join(", ")}${row.n_labels > row.labels.length ? `, ... (${count(row.n_labels)})` : ""}`;
  const features = (row) => `${row.features.slice(0, 8).map(({ feature, value }) => `${feature} ${Number(value.toPrecision(3))}`).join(", ")}${row.n_features > 8 ? `, ... (${count(row.n_features)})` : ""}`;
  const table = (part, examples) => html`<h2>Example rows: ${part}</h2><${Table} caption=${`Example rows: ${part}`} columns=${["row#", "labels", ...(examples[0]?.text ? ["text"] : []), "largest features"]}
    rows=${examples.map((row) => [count(row.row), labels(row), ...(examples[0].text ? [row.text.replaceAll("\u001f", " | ") + (row.text.length >= MAX_TEXT ? "..." : "")] : []), features(row)])} />`;
  return html`${Object.entries(of.parts).map(([part, { examples }]) => table(part, examples))}<${Picture} path=${`/v1/datasets/${segment(id)}/picture`} />`;
}

// Trainings on the data set: accuracy over cost.
function Runs({ id }) {
  const [list, error] = useLoaded(() => get(`/v1/jobs?dataset=${segment(id)}&kind=train&status=SUCCEEDED&limit=200`), [id]);
  const [chosen, setChosen] = useState([]);
  if (!list) return html`<${Trouble} error=${error} />`;
  const reference = ({ result }) => `${result.model}:${result.version}`;
  const toggle = (name) => setChosen((old) => (old.includes(name) ? old.filter((each) => each !== name) : [...old, name].slice(-5)));
  const params = ({ spec }) => Object.entries(spec.params).map(([name, value]) => `${name}=${value}`).join(" ");
  return html`${list.jobs.length > 1 && html`<${Picture} path=${`/v1/datasets/${segment(id)}/pictures/runs`} />`}
    ${chosen.length > 1 && html`<p><a class="button main" href=${`#/compare?models=${segment(chosen.join(","))}`}>Compare ${chosen.length} models</a></p>`}
    <${Table} caption="Models trained on it" sortable=${true} columns=${["compare", "model", "P@1#", "core time#", "duration#", "solver", "parameters", "finished"]} empty="None yet: train on it." rows=${list.jobs.map((job) => [
      html`<input type="checkbox" aria-label=${`Compare ${reference(job)}`} checked=${chosen.includes(reference(job))} onChange=${() => toggle(reference(job))} />`,
      { show: html`<a href=${`#/models/${segment(job.result.model)}?version=${job.result.version}`}>${reference(job)}</a>`, by: reference(job) },
      { show: percent(job.result.measures?.["P@1"]), by: job.result.measures?.["P@1"] }, { show: job.result.report?.core_seconds === undefined ? "" : duration(job.result.report.core_seconds), by: job.result.report?.core_seconds },
      { show: duration(secondsOf(job)), by: secondsOf(job) }, job.spec.solver, params(job), { show: html`<${Time} at=${job.finished} />`, by: job.finished }])} />`;
}
