// Jobs: the list, and one job followed live by its event stream.
import { html, useEffect, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, getText, readEvents, segment } from "./api.js";
import { Picture } from "./pictures.js";
import { Button, count, duration, Details, Pager, phaseOf, setOptions, Status, Table, Trouble, useLoaded, when } from "./parts.js";
import { Events, Timeline } from "./timeline.js";

const STATES = ["", "PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"];
const isOver = (status) => ["STOPPED", "SUCCEEDED", "FAILED"].includes(status);

export function Jobs() {
  const [status, setStatus] = useState("");
  const [page, setPage] = useState([]);
  const token = page[page.length - 1];
  const query = `limit=50${status && `&status=${status}`}${token ? `&page_token=${segment(token)}` : ""}`;
  const [list, error] = useLoaded(() => get(`/v1/jobs?${query}`), [query], 3);
  return html`<h1>Jobs</h1><p><label>Status <select value=${status} onChange=${(event) => { setPage([]); setStatus(event.target.value); }}>${STATES.map((name) => html`<option value=${name}>${name || "all"}</option>`)}</select></label></p>
    <${Trouble} error=${error} />${list && html`<${Table} caption="Jobs" columns=${["name", "kind", "status", "phase", "created (UTC)"]} empty="There is no such job."
      rows=${list.jobs.map((job) => [html`<a href=${`#/jobs/${job.id}`}>${job.name}</a>`, job.kind, html`<${Status} value=${job.status} />`, phaseOf(job), when(job.created)])} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} />`}`;
}

// Follow the events of a job: [latest progress, epochs, other events, error].
function useEvents(id, attempt) {
  const [progress, setProgress] = useState(null);
  const [epochs, setEpochs] = useState([]);
  const [events, setEvents] = useState([]);
  const [error, setError] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    setEpochs([]);
    setEvents([]);
    const onEvent = (kind, data) => {
      if (kind === "progress") setProgress(data);
      else if (kind === "epoch") setEpochs((old) => [...old.filter((each) => each.epoch < data.epoch), data]);
      else setEvents((old) => [...old, [kind, data]]);
    };
    readEvents(`/v1/jobs/${segment(id)}/events`, onEvent, stop.signal).catch(setError);
    return () => stop.abort();
  }, [id, attempt]);
  return [progress, epochs, events, error];
}

export function Job({ id }) {
  const [turn, setTurn] = useState(0);  // another attempt has another stream
  const [failed, setFailed] = useState(null);
  const [progress, epochs, events, streamError] = useEvents(id, turn);
  const [job, error, reload] = useLoaded(() => get(`/v1/jobs/${segment(id)}`), [id, events.length]);
  if (!job) return html`<h1>Job</h1><${Trouble} error=${error} />`;
  const act = async (method, path, question) => {
    if (question && !confirm(question)) return;
    setFailed(null);
    try {
      await change(method, `/v1/jobs/${segment(id)}${path}`);
      if (method === "DELETE") location.hash = "#/jobs";
      if (path === "/resume") setTurn(turn + 1);
      reload();
    } catch (problem) {
      setFailed(problem);
    }
  };
  const now = progress || job.progress;
  const canResume = ["STOPPED", "FAILED"].includes(job.status);
  return html`<h1>Job ${job.name}</h1>
    <p role="status">Status: <${Status} value=${job.status} />${" "}${job.stop_requested && !isOver(job.status) ? "(a stop was requested)" : ""}</p>
    ${job.message && html`<div class="problem">${job.reason}: ${job.message}</div>`}
    <${Trouble} error=${error || streamError} /><${Trouble} error=${failed} /><${Notes} result=${job.result} />
    <p>${!isOver(job.status) && html`<${Button} scope="submit" disabled=${job.stop_requested} onClick=${() => act("POST", "/stop")}>Stop<//>`}
      ${canResume && html`<${Button} scope="submit" onClick=${() => act("POST", "/resume")}>Resume<//>`}
      ${isOver(job.status) && html`<${Button} scope="submit" onClick=${() => act("DELETE", "", "Delete this job, its log and its finished parts? A trained model stays.")}>Delete<//>`}
      ${job.kind === "train" && html`<a href=${`#/train?from=${segment(id)}`}>Train again with changes</a>`}</p>
    ${now.total > 0 ? html`<p><progress max=${now.total} value=${now.done} aria-label="progress"></progress> ${count(now.done)} of ${count(now.total)} ${now.note}</p>` : !isOver(job.status) && now.note && html`<p><progress aria-label="progress"></progress> ${now.note}</p>`}
    <${Details} of=${[["Phase", isOver(job.status) ? "" : phaseOf({ ...job, progress: now })], ["Attempt", job.attempt], ["Rate", !isOver(job.status) && now.rate ? `${now.rate.toFixed(1)} per second` : ""],
      ["Time left", job.status === "RUNNING" ? duration(now.eta) : ""], ["Created (UTC)", when(job.created)], ["Started (UTC)", when(job.started)], ["Finished (UTC)", when(job.finished)],
      ["Ray", job.ray_job && html`<a href=${job.ray_job} rel="noreferrer">job in Ray's dashboard</a> (a local Ray asks for the token in HOME/ray/token)`],
      ["Data set", job.spec.dataset && html`<a href=${`#/datasets/${job.spec.dataset}`}>${job.spec.dataset}</a>`],
      ["Model", job.result?.model && html`<a href=${`#/models/${job.result.model}`}>${job.result.model}, version ${job.result.version}</a>`]]} />
    ${epochs.length > 1 && html`<${Picture} path=${`/v1/jobs/${segment(id)}/pictures/objective`} turn=${isOver(job.status)} seconds=${isOver(job.status) ? 0 : 3} />`}
    ${job.kind === "train" && job.started && html`<${Timeline} id=${id} running=${!isOver(job.status)} />`}
    ${job.status === "SUCCEEDED" && job.kind === "train" && html`<${Gaps} id=${id} /><${Measures} of=${job.result.measures} />`}
    <${Events} events=${events} /><${Log} id=${id} over=${isOver(job.status)} />
    ${job.kind === "train" && html`<${Calls} job=${job} />`}`;
}

// What the reader of a result must know: unfinished labels, data that look wrong, no probabilities.
function Notes({ result }) {
  const { report = {}, partial, data_warnings: data = [], warnings = [] } = result || {};
  const notes = [...data, ...warnings].map((each) => each.message);
  if (report.not_calibrated) notes.push(`No probabilities: ${report.not_calibrated}`);
  if (partial) notes.push(`The time limit ended the training: ${Object.entries(partial).map(([name, value]) => `${name} ${value}`).join(", ")}.`);
  return notes.map((note) => html`<div class="problem">${note}</div>`);
}

const Measures = ({ of }) => {
  const rows = Object.entries(of || {}).filter(([, value]) => typeof value === "number");
  return html`<h2>Measures</h2><${Table} caption="Measures" columns=${["measure", "value#"]} empty="None: no rows were held out." rows=${rows.map(([name, value]) => [name, value.toFixed(4)])} />`;
};

function Gaps({ id }) {
  const [page, error] = useLoaded(() => get(`/v1/jobs/${segment(id)}/labels?limit=100`), [id]);
  const gaps = (page?.labels || []).filter((each) => typeof each.gap === "number");
  if (!gaps.length) return error && error.status !== 404 && html`<${Trouble} error=${error} />`;
  return html`<h2>Duality gaps</h2><p>The first ${gaps.length} labels: how far each is from the optimum, as a share of its null objective.</p>
    <details><summary>Labels and gaps</summary><${Table} caption="Duality gaps" columns=${["label", "positives#", "gap#", "seconds#"]} rows=${gaps.map((each) => [each.label, count(each.positives), each.gap.toExponential(2), (each.seconds || 0).toFixed(3)])} /></details>`;
}

function Log({ id, over }) {
  const [search, setSearch] = useState("");
  const [text, error] = useLoaded(() => getText(`/v1/jobs/${segment(id)}/logs?tail=200`), [id, over], over ? 5 : 2);
  const lines = (text || "").split("\n").filter((line) => line.toLowerCase().includes(search.toLowerCase()));
  return html`<h2>Log</h2><p><label>Search <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label></p>
    <${Trouble} error=${error} /><pre tabindex="0" aria-label="last 200 lines of the log">${lines.join("\n") || "no lines"}</pre>`;
}

// The command and the request that submit the same training.
function Calls({ job }) {
  const { spec } = job, body = { dataset: spec.dataset, model: spec.name, solver: spec.solver, params: spec.params };
  const [solvers] = useLoaded(() => get("/v1/solvers"), []);
  if (!solvers) return null;
  const given = setOptions(solvers.training, job);
  const quote = (value) => (/^[\w@.:/=+-]+$/.test(value) ? value : `'${String(value).replaceAll("'", "'\\''")}'`);
  const option = ([name, value]) => `--${name.replaceAll("_", "-")}${value === true ? "" : ` ${quote(String(value))}`}`;
  const named = { model: body.model, solver: body.solver, ...given, server: location.origin };
  const words = ["xcray jobs submit", body.dataset, ...Object.entries(named).map(option), ...Object.entries(body.params).map(([name, value]) => `-p ${quote(`${name}=${value}`)}`)];
  return html`<h2>The same training by command and by REST</h2><pre tabindex="0" aria-label="command">${words.join(" ")}</pre>
    <pre tabindex="0" aria-label="REST call">${`curl ${location.origin}/v1/jobs -H 'Authorization: Bearer xck_...' -H 'Content-Type: application/json' \\\n  -d ${quote(JSON.stringify({ ...body, ...given }))}`}</pre>`;
}
