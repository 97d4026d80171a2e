// The list of jobs: how far each is, how long it took, and what came of it.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { get, segment } from "./api.js";
import { count, duration, Pager, percent, phaseOf, Status, Table, Time, Trouble, useLoaded } from "./parts.js";

const STATES = ["", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"];
export const isOver = (status) => ["STOPPED", "SUCCEEDED", "FAILED"].includes(status);

// Seconds since the start, until the end or now.
export const secondsOf = ({ started, finished }) => (started ? Math.max(0, ((finished ? new Date(finished) : new Date()) - new Date(started)) / 1000) : null);

export function Progress({ job: { status, progress: { total, done, eta } } }) {
  if (status === "SUCCEEDED") return "done";
  if (!total) return "";
  const left = status === "RUNNING" && typeof eta === "number" ? `, ${duration(eta)} left` : "";
  return html`<progress max=${total} value=${done} aria-label="progress"></progress> ${percent(done / total, 0)}${left}`;
}

export function ModelLink({ result }) {
  if (!result?.model) return null;
  const [name, version = result.version] = result.model.split(":");  // of a batch prediction: both in one
  return html`<a href=${`#/models/${segment(name)}?version=${version}`}>${name}:${version}</a>`;
}

function resultOf({ kind, result, message }) {
  if (!result) return message ?? "";
  if (kind === "predict") return `${count(result.answered ?? result.rows)} rows answered`;
  return typeof result.measures?.["P@1"] === "number" ? html`<span class="number">P@1 ${percent(result.measures["P@1"])}</span>` : "not measured";
}

export function Jobs() {
  const [filter, setFilter] = useState({});
  const [page, setPage] = useState([]);
  const query = new URLSearchParams({ limit: 50, ...filter, ...(page.length && { page_token: page[page.length - 1] }) });
  const [list, error] = useLoaded(() => get(`/v1/jobs?${query}`), [String(query)], 3);
  const submit = (event) => {
    event.preventDefault();
    setPage([]);
    setFilter(Object.fromEntries([...new FormData(event.currentTarget)].filter(([, value]) => value)));
  };
  const row = (job) => [{ show: html`<a href=${`#/jobs/${job.id}`}>${job.name}</a>`, by: job.name }, { show: html`<${Status} value=${job.status} /> ${phaseOf(job)}`, by: job.status },
    html`<${Progress} job=${job} />`, { show: secondsOf(job) === null ? "" : duration(secondsOf(job)), by: secondsOf(job) }, { show: resultOf(job), by: job.result?.measures?.["P@1"] },
    html`<${ModelLink} result=${job.result} />`, { show: html`<${Time} at=${job.created} />`, by: job.created }, job.spec.solver ?? job.kind];
  return html`<h1>Jobs</h1><form class="bar" role="search" onSubmit=${submit}>
      <label>Part of the name <input type="search" name="contains" maxlength="128" /></label>
      <label>Status <select name="status" onChange=${(event) => event.target.form.requestSubmit()}>${STATES.map((name) => html`<option value=${name}>${name || "all"}</option>`)}</select></label> <button>Search</button>
      <a class="button main" href="#/train">Train</a></form>
    <${Trouble} error=${error} />${list && html`<${Table} caption="Jobs" sortable=${true} columns=${["name", "status", "progress", "duration#", "result", "model", "created", "solver"]}
      empty=${Object.keys(filter).length ? "No job matches." : html`There is no job yet: <a href="#/train">train a model</a>.`} rows=${list.jobs.map(row)} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} />`}`;
}
