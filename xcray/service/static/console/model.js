// A model: its summary with one picture first, then tabs.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, download, get, getText, segment } from "./api.js";
import { Aliases } from "./aliases.js";
import { Change } from "./change.js";
import { Feedback } from "./feedback.js";
import { Picture } from "./pictures.js";
import { Button, bytes, count, Details, duration, Figures, Measures, Menu, Pager, percent, Status, Table, Tabs, Time, Trouble, useAction, useLoaded } from "./parts.js";

const TABS = { accuracy: "Accuracy", labels: "Labels", cost: "Cost and certificate", versions: "Versions and traffic", calibration: "Calibration", feedback: "Feedback", change: "Change", files: "Files and API" };
const PARTS = { accuracy: Accuracy, labels: Labels, cost: Cost, versions: Versions, calibration: Calibration, feedback: Feedback, change: Change, files: Files };
// heading and text of each picture
const PICTURES = {
  by_frequency: ["By label frequency", "Ten groups of labels, rarest first: equally many labels, or equally many training rows."],
  costs: ["Cost by label frequency"],
  certificates: ["Certificates", "Duality gaps of the labels: how far each can be from its optimum, as a share of its null objective."],
  timeline: ["Workers"], stages: ["Stages"], objective: ["Objective"], oracle: ["Approximate search"],
  calibration: ["Calibration", "Points on the dashed line: of the answers with a probability of 0.7, seven of ten are right."],
};
// Pictures of the summary, and the panel that is shown: the first picture that exists. Panel 2 of the first: recall.
const SUMMARY = { by_frequency: 2, stages: 1, objective: 1, certificates: 1 };

export function Model({ id, query }) {
  const [model, error, reload] = useLoaded(() => get(`/v1/models/${segment(id)}`), [id]);
  const version = model && Number(query.version || model.versions[model.versions.length - 1]);
  const path = `/v1/models/${segment(id)}/versions/${version}`;
  const [found, versionError] = useLoaded(async () => model && { of: await get(path), report: await get(`${path}/report`) }, [path]);
  if (!model) return html`<h1>Model</h1><${Trouble} error=${error} />`;
  const address = `#/models/${segment(id)}`, tab = query.tab in PARTS ? query.tab : "accuracy";
  const Part = PARTS[tab];
  const isLatest = version === model.versions[model.versions.length - 1];
  return html`<h1>Model ${model.name}${model.versions.length > 1 && html`<small> version ${version}${isLatest ? ", the latest" : ""}</small>`}</h1>
    <${Trouble} error=${versionError} />
    ${found?.of.version === version && html`<${Summary} model=${model} of=${found.of} report=${found.report} path=${path} />`}
    <${Tabs} tabs=${TABS} current=${tab} path=${address} query=${query.version ? { version: query.version } : {}} />
    ${found?.of.version === version ? html`<${Part} key=${path} model=${model} of=${found.of} report=${found.report} path=${path} reload=${reload} query=${query} />`
      : tab === "versions" && html`<${Versions} model=${model} of=${{ version }} reload=${reload} />`}`;
}

function Summary({ model, of, report, path }) {
  const [failed, perform] = useAction();
  const picture = Object.keys(SUMMARY).find((name) => report.pictures.includes(name));
  const reference = `${of.name}:${of.version}`;
  const remove = async () => {
    if (!confirm(`Delete version ${of.version} of ${of.name} and its files? Its number is not used again.`)) return;
    if (await perform(() => change("DELETE", path))) location.hash = model.versions.length === 1 ? "#/models" : `#/models/${segment(of.name)}?tab=versions`;
  };
  return html`<div class="summary"><div>
      <${Figures} measures=${of.measures} rows=${of.held_out} />
      <p class="bar"><a class="button main" href=${`#/ask?model=${segment(reference)}`}>Ask this version</a>
        <a class="button" href=${`#/compare?models=${segment(reference)}`}>Compare</a>
        <${Menu}><${Button} scope="submit" onClick=${remove}>Delete version ${of.version}<//><//></p><${Trouble} error=${failed} />
      <${Details} of=${[["Created", html`<${Time} at=${of.created} />`], ["Size", bytes(of.n_bytes)], ["Labels", count(of.n_labels)], ["Solver", of.solver],
        ["Data set", of.dataset_name], ["Aliases", of.aliases.filter((alias) => alias !== "latest").join(", ")], ["Probabilities", of.calibrated ? "yes" : "no"]]} />
    </div>${picture && html`<${Picture} key=${path} path=${`${path}/pictures/${picture}`} panel=${SUMMARY[picture]} />`}</div>`;
}

// Pictures of the report, as far as they exist.
const Pictures = ({ names, report, path }) => names.filter((name) => report.pictures.includes(name)).map((name) => html`<h2>${PICTURES[name][0]}</h2>
  ${PICTURES[name][1] && html`<p>${PICTURES[name][1]}</p>`}<${Picture} key=${name} path=${`${path}/pictures/${name}`} />`);

function Accuracy({ of, report, path }) {
  return html`<${Measures} of=${of.measures} />
    <${Pictures} names=${["by_frequency"]} report=${report} path=${path} />`;
}

function Cost({ report, path }) {
  const { training } = report, known = (name, show) => (training[name] === undefined ? "" : show(training[name]));
  return html`<h2>Training</h2><${Details} of=${[["Time", known("makespan", duration)], ["Core time", known("core_seconds", duration)], ["Workers", training.workers],
      ["Labels with a certificate", known("labels_certified", (n) => `${count(n)} of ${count(training.labels)}`)], ["Epochs", count(training.epochs)]]} />${training.stopped && html`<p class="note">It ended because ${training.stopped}.</p>`}
    <details><summary>Parameters</summary><${Table} caption="Parameters" columns=${["parameter", "value"]} rows=${Object.entries(report.params).map(([name, each]) => [name, String(each)])} /></details>
    <${Pictures} names=${["certificates", "objective", "stages", "oracle", "costs", "timeline"]} report=${report} path=${path} />`;
}

function Calibration({ of, report, path }) {
  if (!of.calibrated) return html`<h2>Calibration</h2><p>This version has no probabilities: <a href=${`#/models/${segment(of.name)}?version=${of.version}&tab=change`}>fit them</a> to held-out rows.</p>`;
  const rows = Object.entries(report.calibration ?? {}).map(([k, each]) => [`first ${k}`, percent(each.ece, 2), percent(each.ece_sigmoid, 2)]);
  return html`<h2>Calibration error</h2><${Table} caption="Calibration error" columns=${["labels", "ECE#", "sigmoid of the score#"]} empty="The probabilities are those of the model itself; they were not fitted on held-out rows." rows=${rows} />
    <${Pictures} names=${["calibration"]} report=${report} path=${path} />`;
}

const SHOWN = 30;  // versions of the table: each is a request

function Versions({ model, of, reload }) {
  const compared = model.versions.slice(-5).map((each) => `${model.name}:${each}`).join(",");
  const state = (version) => model.states.find((each) => each.version === version) ?? {};
  const open = (event) => { event.preventDefault(); location.hash = `#/models/${segment(model.name)}?version=${new FormData(event.target).get("version")}&tab=versions`; };
  const newest = [...model.versions].reverse().slice(0, SHOWN);
  // A version that cannot be read is a row without figures.
  const [found = []] = useLoaded(() => Promise.all(newest.map((each) => get(`/v1/models/${segment(model.name)}/versions/${each}`).catch(() => null))), [String(newest)]);
  return html`<h2>Versions</h2>
    ${model.versions.length > 1 && html`<p><a class="button" href=${`#/compare?models=${segment(compared)}`}>Compare the newest ${Math.min(5, model.versions.length)}</a></p>`}
    <${Table} caption="Versions" columns=${["version#", "P@1#", "size#", "solver", "created", "state", "aliases"]} rows=${newest.map((each, i) => [
      html`<a href=${`#/models/${segment(model.name)}?version=${each}&tab=versions`} aria-current=${each === of.version ? "true" : undefined}>${each}</a>`, percent(found[i]?.measures["P@1"]), found[i] && bytes(found[i].n_bytes), found[i]?.solver, html`<${Time} at=${found[i]?.created} />`,
      html`<${Status} value=${state(each).state} /> ${state(each).reason}`, found[i]?.aliases.filter((alias) => alias !== "latest").join(", ")])} />
    ${model.versions.length > SHOWN && html`<form class="bar" onSubmit=${open}><label>One of the ${count(model.versions.length - SHOWN)} older versions <input name="version" type="number" required min=${model.versions[0]} max=${newest[SHOWN - 1] - 1} /></label> <button>Open</button></form>`}
    <${Aliases} model=${model} version=${of.version} reload=${reload} />`;
}

function Files({ of, path }) {
  const [failed, perform] = useAction();
  const [sending, setSending] = useState(false);
  const [card] = useLoaded(() => getText(`${path}/card`), [path]);
  const save = async () => {
    setSending(true);
    await perform(() => download(`${path}/archive`, `${of.name}-${of.version}.tar`));
    setSending(false);
  };
  const body = JSON.stringify({ instances: [{ text: "..." }], top_k: 5 });
  return html`<h2>Files</h2><p><${Button} scope="read" disabled=${sending} onClick=${save}>Download (${bytes(of.n_bytes)})<//></p><${Trouble} error=${failed} />
    <${Details} of=${[["SHA-256", `${of.sha256.slice(0, 16)}...`], ["Data set's SHA-256", `${of.dataset_hash.slice(0, 16)}...`], ["Features", count(of.n_features)], ["Weights", count(of.nnz)]]} />
    <p>For other programs (npz, liblinear, dismec), after tar xf: xcray models export DIR npz FILE.</p>
    <h2>By REST, Python and command</h2><pre tabindex="0" aria-label="calls">${`curl ${location.origin}/v1/models/${of.name}:${of.version}:predict -H 'Authorization: Bearer xck_...' \\
  -H 'Content-Type: application/json' -d '${body}'

from xcray.client import Client
Client("${location.origin}").predict("${of.name}:${of.version}", ["..."], top_k=5)

xcray predict ${of.name}:${of.version} --text "..." --server ${location.origin}`}</pre>
    <details><summary>Model card</summary><pre tabindex="0">${card}</pre></details>`;
}

// A model that is a chain of stages has no weights by label; the service says so and this shows it.
function Labels({ of }) {
  const reference = `${of.name}:${of.version}`;
  const [search, setSearch] = useState("");
  const [page, setPage] = useState([]);
  const [label, setLabel] = useState(null);
  const query = new URLSearchParams({ limit: 50, contains: search, ...(page.length && { page_token: page[page.length - 1] }) });
  const [list, error] = useLoaded(() => get(`/v1/models/${segment(reference)}/labels?${query}`), [reference, String(query)]);
  const submit = (event) => { event.preventDefault(); setPage([]); setSearch(new FormData(event.target).get("search")); };
  if (error && !list) return html`<h2>Labels</h2><${Trouble} error=${error} />`;
  const open = (name) => html`<button type="button" aria-expanded=${name === label} onClick=${() => setLabel(name)}>${name}</button>`;
  return html`<h2>Labels</h2><form role="search" class="bar" onSubmit=${submit}><label>Part of the name <input type="search" name="search" /></label> <button>Search</button></form>
    <${Trouble} error=${error} />${list && html`<${Table} caption="Labels" sortable=${true} columns=${["label", "training rows#", "gap#", "weights#"]} empty="No label matches." rows=${list.labels.map((each) => [
      { show: open(each.label), by: each.label }, { show: count(each.positives), by: each.positives }, { show: each.gap === null ? "" : each.gap.toExponential(1), by: each.gap }, { show: count(each.weights), by: each.weights }])} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} names=${["Previous", "Next"]} />`}
    ${label !== null && html`<${Label} reference=${reference} label=${label} />`}`;
}

function Label({ reference, label }) {
  const [of, error] = useLoaded(() => get(`/v1/models/${segment(reference)}/labels/${segment(label)}`), [reference, label]);
  if (!of || of.label !== label) return html`<${Trouble} error=${error} />`;
  return html`<h3>Label ${label}</h3><${Details} of=${[["Training rows", count(of.positives)], ["Bias", of.bias.toFixed(4)], ["Weights", count(of.weights)]]} />
    <${Table} caption="Largest weights" columns=${["feature", "weight#"]} empty="It has no weights." rows=${of.features.map((each) => [each.feature, each.weight.toFixed(4)])} />
    ${of.similar.length > 0 && html`<h3>Similar labels</h3><${Table} caption="Similar labels" columns=${["label", "cosine#"]} rows=${of.similar.map((each) => [each.label, each.cosine.toFixed(3)])} />`}`;
}
