// One job, followed live by its event stream: its summary first, then tabs.
import { html, useEffect, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, download, get, getText, readEvents, segment } from "./api.js";
import { isOver, ModelLink, secondsOf } from "./jobs.js";
import { Picture } from "./pictures.js";
import { Button, bytes, count, duration, Details, Figures, Measures, Menu, setOptions, Status, Table, Tabs, Time, Trouble, useAction, useLoaded } from "./parts.js";
import { Events, Timeline } from "./timeline.js";

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

export function Job({ id, query }) {
  const [turn, setTurn] = useState(0);  // another attempt has another stream
  const [progress, epochs, events, streamError] = useEvents(id, turn);
  const [job, error, reload] = useLoaded(() => get(`/v1/jobs/${segment(id)}`), [id, events.length]);
  const own = job?.result?.report?.data?.name, used = job?.spec.dataset;
  // Of the list: a data set that was deleted meanwhile would be a 404.
  const [named = own ?? used] = useLoaded(async () => own ?? (used && (await get("/v1/datasets?limit=1000")).datasets.find((set) => set.id === used)?.name), [own, used]);
  if (!job) return html`<h1>Job</h1><${Trouble} error=${error} />`;
  const isTraining = job.kind === "train";
  const tabs = { progress: "Progress", ...(job.status === "SUCCEEDED" && { result: "Result" }), log: "Events and log", ...(isTraining && { calls: "Command and REST" }) };
  const tab = query.tab in tabs ? query.tab : tabs.result && !isTraining ? "result" : "progress";
  const now = { ...job, progress: (!isOver(job.status) && progress) || job.progress };
  const restart = () => { setTurn(turn + 1); reload(); };
  return html`<h1>Job ${job.name}</h1>
    <${Trouble} error=${error || streamError} /><${Summary} job=${now} dataset=${named} reload=${reload} restart=${restart} />
    <${Tabs} tabs=${tabs} current=${tab} path=${`#/jobs/${segment(id)}`} />
    ${tab === "progress" && html`<${Course} job=${now} epochs=${epochs} />`}
    ${tab === "result" && (isTraining ? html`<${Measures} of=${job.result.measures} />${job.result.report?.labels_certified !== undefined && html`<${Gaps} id=${id} />`}` : html`<${Output} id=${id} />`)}
    ${tab === "log" && html`<${Events} events=${events} /><${Log} id=${id} over=${isOver(job.status)} />`}
    ${tab === "calls" && html`<${Calls} job=${job} />`}`;
}

function Summary({ job, dataset, reload, restart }) {
  const [failed, perform] = useAction();
  const { status, progress: now, spec, result } = job, path = `/v1/jobs/${segment(job.id)}`;
  const act = async (method, action, then) => { if (await perform(() => change(method, `${path}${action}`))) then(); };
  const remove = () => confirm("Delete this job, its log and its finished parts? A trained model stays.") && act("DELETE", "", () => { location.hash = "#/jobs"; });
  const isRunning = !isOver(status), canResume = ["STOPPED", "FAILED"].includes(status);
  return html`<p role="status">Status: <${Status} value=${status} />${" "}${job.stop_requested && isRunning ? "(a stop was requested)" : ""}</p>
    ${job.message && html`<div class="problem">${job.reason}: ${job.message}</div>`}<${Notes} result=${result} />
    ${isRunning && html`<p>${now.total > 0 ? html`<progress class="wide" max=${now.total} value=${now.done} aria-label="progress"></progress> ${count(now.done)} of ${count(now.total)}` : html`<progress class="wide" aria-label="progress"></progress>`}${" "}${now.note}</p>`}
    ${job.kind === "train" && status === "SUCCEEDED" && html`<${Figures} measures=${result.measures} rows=${result.report?.data?.held_out} />`}
    <p class="bar">${job.kind === "train" && status === "SUCCEEDED" && html`<a class="button main" href=${`#/ask?model=${segment(`${result.model}:${result.version}`)}`}>Ask the model</a> `}
      ${isRunning && html`<${Button} scope="submit" disabled=${job.stop_requested} onClick=${() => act("POST", "/stop", reload)}>Stop<//>`}
      ${canResume && html`<${Button} class="main" scope="submit" onClick=${() => act("POST", "/resume", restart)}>Resume<//>`}
      ${job.kind === "train" && html`<a class="button" href=${`#/train?from=${segment(job.id)}`}>Train again with changes</a> `}
      ${!isRunning && html`<${Menu}><${Button} scope="submit" onClick=${remove}>Delete<//><//>`}</p><${Trouble} error=${failed} />
    <${Details} of=${[["Model", result?.model && html`<${ModelLink} result=${result} />`], ["Data set", spec.dataset && html`<a href=${`#/datasets/${spec.dataset}`}>${dataset}</a>`],
      ["Phase", isRunning ? job.phase : ""], ["Time left", status === "RUNNING" && typeof now.eta === "number" ? duration(now.eta) : ""], ["Rate", isRunning && now.rate ? `${now.rate.toFixed(1)} per second` : ""],
      ["Duration", secondsOf(job) === null ? "" : duration(secondsOf(job))], ["Created", html`<${Time} at=${job.created} />`], ["Finished", job.finished && html`<${Time} at=${job.finished} />`],
      ["Attempt", job.attempt > 1 ? job.attempt : ""], ["Solver", spec.solver], ["Version of", spec.update], ["Change", spec.change],
      ["Gate", result?.comparison && (result.comparison.passed ? "passed" : "not passed")],
      ["Ray", job.ray_job && html`<a href=${job.ray_job} rel="noreferrer">job in Ray's dashboard</a> <br />A local Ray asks for its token. On the machine of the service: <code>cat ~/.xcray/ray/token</code>, or in the folder of <code>--home</code>. <code>ray get-auth-token</code> prints another one.`]]} />`;
}

// Pictures of the work: the objective by epoch, or labels by time, and the workers.
function Course({ job, epochs }) {
  const path = `/v1/jobs/${segment(job.id)}/pictures`, over = isOver(job.status);
  if (job.kind !== "train" || !job.started) return html`<p>${over ? "" : "The job waits for its turn."}</p>`;
  return html`${epochs.length > 1 && html`<${Picture} path=${`${path}/objective`} turn=${over} seconds=${over ? 0 : 3} />`}
    ${((job.progress.done > 0 && job.progress.phase !== "SELECTING") || job.status === "SUCCEEDED") && html`<${Timeline} id=${job.id} running=${!over} />`}`;
}

// What the reader of a result must know: unfinished labels, data that look wrong, no probabilities.
function Notes({ result }) {
  const { report = {}, partial, data_warnings: data = [], warnings = [] } = result || {};
  const notes = [...data, ...warnings].map((each) => each.message);
  if (report.not_calibrated) notes.push(`No probabilities: ${report.not_calibrated}`);
  if (report.no_thresholds) notes.push(`No thresholds per label: ${report.no_thresholds}`);
  if (partial) notes.push(`The time limit ended the training: ${Object.entries(partial).map(([name, value]) => `${name} ${value}`).join(", ")}.`);
  return notes.map((note) => html`<div class="problem">${note}</div>`);
}

function Gaps({ id }) {
  const [page, error] = useLoaded(() => get(`/v1/jobs/${segment(id)}/labels?limit=100`), [id]);
  const gaps = (page?.labels || []).filter((each) => typeof each.gap === "number");
  if (!gaps.length) return error && error.status !== 404 && html`<${Trouble} error=${error} />`;
  return html`<h2>Duality gaps</h2><p>The first ${gaps.length} labels: how far each is from the optimum, as a share of its null objective.</p>
    <details><summary>Labels and gaps</summary><${Table} caption="Duality gaps" sortable=${true} columns=${["label", "positives#", "gap#", "seconds#"]} rows=${gaps.map((each) => [each.label, each.positives, { show: each.gap.toExponential(2), by: each.gap }, { show: (each.seconds || 0).toFixed(3), by: each.seconds }])} /></details>`;
}

// The files of a batch prediction.
function Output({ id }) {
  const [failed, perform] = useAction();
  const [of, error] = useLoaded(() => get(`/v1/jobs/${segment(id)}/output`), [id]);
  if (!of) return html`<${Trouble} error=${error} />`;
  const save = (file) => perform(() => download(`/v1/jobs/${segment(id)}/output/${file}`, file));
  return html`<h2>Output</h2><p>${count(of.answered)} of ${count(of.rows)} rows were answered${of.skipped ? `, ${count(of.skipped)} skipped` : ""}.</p><${Trouble} error=${failed} />
    <p>All rows as ${["answers.csv", "answers.jsonl"].map((file) => html`<${Button} scope="read" onClick=${() => save(file)}>${file === "answers.csv" ? "CSV" : "JSON lines"}<//> `)}</p>
    <${Table} caption="Output" columns=${["file", "rows#", "size#"]} rows=${of.parts.map(({ file, rows, bytes: size }) => [html`<${Button} scope="read" onClick=${() => save(file)}>${file}<//>`, count(rows), bytes(size)])} />`;
}

function Log({ id, over }) {
  const [search, setSearch] = useState("");
  const [text, error] = useLoaded(() => getText(`/v1/jobs/${segment(id)}/logs?tail=200`), [id, over], over ? 5 : 2);
  const lines = (text || "").split("\n").filter((line) => line.toLowerCase().includes(search.toLowerCase()));
  return html`<h2>Log</h2><p><label>Search <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} /></label></p>
    <${Trouble} error=${error} /><pre tabindex="0" aria-label="last 200 lines of the log">${lines.join("\n") || "no lines"}</pre>`;
}

// The change of a version and its options.
const changeOf = ({ change: name, labels, into, objective, precision }) => ({ change: name, labels, into, ...(name === "thresholds" && { objective, precision }) });

// The command and the request that submit the same training or update.
function Calls({ job }) {
  const { spec } = job, { dataset, update, name: model, solver, params } = spec;
  const named = update ? Object.fromEntries(Object.entries({ model, gate: spec.gate, alias: spec.alias, weight: spec.weight < 1 && spec.weight, ...(spec.change !== "rows" && changeOf(spec)) }).filter(([, value]) => value)) : { model, solver };
  const [solvers] = useLoaded(() => get("/v1/solvers"), []);
  if (!solvers) return null;
  const given = setOptions(solvers.training, job);
  const quote = (value) => (/^[\w@.:/=+-]+$/.test(value) ? value : `'${String(value).replaceAll("'", "'\\''")}'`);
  const option = ([name, value]) => `--${name.replaceAll("_", "-")}${value === true ? "" : ` ${quote(String(value))}`}`;
  const values = update ? {} : { params };
  const words = [update ? `xcray jobs update ${update} --dataset` : "xcray jobs submit", dataset, ...Object.entries({ ...named, ...given, server: location.origin }).flatMap(([name, value]) => [value].flat().map((each) => option([name, each]))),
    ...Object.entries(values.params ?? {}).map(([name, value]) => `-p ${quote(`${name}=${value}`)}`)];
  return html`<h2>The same ${update ? "update" : "training"} by command and by REST</h2><pre tabindex="0" aria-label="command">${words.join(" ")}</pre>
    <pre tabindex="0" aria-label="REST call">${`curl ${location.origin}${update ? `/v1/models/${update}:update` : "/v1/jobs"} -H 'Authorization: Bearer xck_...' -H 'Content-Type: application/json' \\\n  -d ${quote(JSON.stringify({ dataset, ...named, ...values, ...given }))}`}</pre>`;
}
