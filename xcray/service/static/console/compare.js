// Two to five models or versions on the same rows: differences with paired intervals, parameters, labels, cost.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, segment } from "./api.js";
import { Field, bytes, count, duration, percent, Table, Time, Trouble, useAction, useLoaded } from "./parts.js";

const FIRST = ["P@1", "P@3", "P@5", "nDCG@5", "PSP@5", "recall@5"];  // the others are folded
const versionPath = (reference) => `/v1/models/${segment(reference.slice(0, reference.lastIndexOf(":")))}/versions/${reference.slice(reference.lastIndexOf(":") + 1)}`;

export function Compare({ query }) {
  const models = (query.models ?? "").split(",").filter(Boolean);
  const [found, error] = useLoaded(async () => ({
    versions: await Promise.all(models.map((reference) => get(versionPath(reference)))),
    reports: await Promise.all(models.map((reference) => get(`${versionPath(reference)}/report`))),
    sets: (await get("/v1/datasets?limit=1000")).datasets.filter((set) => set.status === "READY"),
  }), [query.models]);
  return html`<h1>Compare</h1><${Choice} models=${models} />
    <${Trouble} error=${error} />${found && models.length > 1 && html`<${OnRows} models=${models} ...${found} />`}
    ${found && models.length > 0 && html`<${Versions} models=${models} ...${found} />`}${found && models.length > 1 && html`<${Weights} models=${models} />`}`;
}

// The models that are compared; another one is added by its name.
function Choice({ models }) {
  const [failed, perform] = useAction();
  const go = (list) => { location.hash = `#/compare?models=${segment(list.join(","))}`; };
  const add = (event) => {
    event.preventDefault();
    const name = new FormData(event.target).get("reference").trim();
    perform(async () => go([...models, name.includes(":") ? name : `${name}:${(await get(`/v1/models/${segment(name)}`)).versions.pop()}`]));
  };
  const [page] = useLoaded(() => get("/v1/models?limit=100&sort=created"), []);
  const names = page?.models.flatMap(({ name, versions }) => [...versions].reverse().map((version) => `${name}:${version}`)).filter((name) => !models.includes(name)) ?? [];
  return html`<ul class="chips">${models.map((reference) => html`<li><a href=${`#/models/${segment(reference.replace(/:\d+$/, ""))}?version=${reference.split(":").pop()}`}>${reference}</a>
      <button type="button" aria-label=${`Remove ${reference}`} onClick=${() => go(models.filter((each) => each !== reference))}>×</button></li>`)}</ul>
    ${models.length < 5 && html`<form class="bar" onSubmit=${add}><label>Add a model <input name="reference" list="references" required pattern="[a-z0-9][a-z0-9._\\-]*(:[0-9]+)?" /></label>
      <datalist id="references">${names.slice(0, 200).map((name) => html`<option value=${name} />`)}</datalist> <button>Add</button></form>`}<${Trouble} error=${failed} />`;
}

// What each version has recorded, and the parameters that differ.
function Versions({ models, versions, reports }) {
  const rows = [["P@1", (of) => percent(of.measures["P@1"], 2)], ["solver", (of) => of.solver], ["created", (of) => html`<${Time} at=${of.created} />`], ["data set", (of) => of.dataset_name ?? ""],
    ["labels", (of) => count(of.n_labels)], ["weights", (of) => count(of.nnz)], ["size", (of) => bytes(of.n_bytes)], ["probabilities", (of) => (of.calibrated ? "yes" : "no")]];
  const cost = reports.map(({ training }) => (training.core_seconds === undefined ? "" : duration(training.core_seconds)));
  const names = [...new Set(reports.flatMap(({ params }) => Object.keys(params)))].sort();
  const value = (each) => (each === undefined ? "" : each === null ? "none" : String(each));
  const params = names.map((name) => [name, ...reports.map((report) => value(report.params[name]))]).filter(([, ...values]) => new Set(values).size > 1);
  return html`<h2>Recorded</h2><${Table} caption="Recorded" columns=${["recorded", ...models]} rows=${[...rows.map(([name, show]) => [name, ...versions.map(show)]), ["core time", ...cost]]} />
    ${models.length > 1 && html`<h2>Parameters that differ</h2><${Table} caption="Parameters that differ" columns=${["parameter", ...models]} empty="All parameters are equal." rows=${params} />`}`;
}

// One comparison runs at a time: while earlier ones of this tenant run, the service answers 429.
async function compared(models, dataset) {
  for (;;) {
    try {
      return await change("POST", "/v1/models:compare", { models, dataset });
    } catch (problem) {
      if (problem.status !== 429) throw problem;
      await new Promise((resolve) => setTimeout(resolve, 5000));
    }
  }
}

// The verdict of a paired 95 % interval.
const verdict = ({ low, high }) => (low > 0 ? "better" : high < 0 ? "worse" : "no difference shown");

function OnRows({ models, versions, sets }) {
  const own = sets.find((set) => set.stats.content_hash === versions[0].dataset_hash) ?? sets.find((set) => set.name === versions[0].dataset_name) ?? sets[0];
  const [dataset, setDataset] = useState(own?.id);
  const [of, error] = useLoaded(async () => dataset && compared(models, dataset), [String(models), dataset]);
  if (!own) return html`<h2>On the same rows</h2><p>There is no data set to compare on: <a href="#/datasets">upload one</a>.</p>`;
  const isCurrent = of?.models.every((each, i) => each.model === models[i]);
  return html`<h2>On the same rows</h2>
    <${Field} id="dataset" label="Data set"><select id="dataset" onChange=${(event) => setDataset(event.target.value)}>${sets.map((set) => html`<option value=${set.id} selected=${set.id === dataset}>${set.name} (${set.created.slice(0, 10)})</option>`)}</select><//>
    <${Trouble} error=${error} />${isCurrent ? html`<${Outcome} of=${of} />` : !error && html`<p role="status">Every model answers the held-out rows: this takes seconds.</p>`}`;
}

function Outcome({ of }) {
  const [first, ...others] = of.models, names = Object.keys(first.measures);
  const cell = (each, name) => (name in (each.differences ?? {}) ? html`${percent(each.measures[name], 2)}<small class=${verdict(each.differences[name]).split(" ")[0]}>${difference(each.differences[name])}</small>` : percent(each.measures[name], 2));
  const difference = (each) => `${each.difference >= 0 ? "+" : "−"}${Math.abs(100 * each.difference).toFixed(2)} ± ${(50 * (each.high - each.low)).toFixed(2)}, ${verdict(each)}`;
  const table = (caption, shown) => html`<${Table} caption=${caption} columns=${["measure", ...of.models.map((each) => `${each.model}#`)]} rows=${shown.map((name) => [name, ...of.models.map((each) => cell(each, name))])} />`;
  const main = FIRST.filter((name) => names.includes(name)), rest = names.filter((name) => !main.includes(name));
  return html`<p role="status">${count(of.rows - of.rows_without_labels)} ${of.part === "test" ? "held-out" : "training"} rows. Differences are to ${first.model}, in points, ± half of the paired 95 % interval.</p>
    ${table("Measures", main)}<details><summary>All measures</summary>${table("All measures", rest)}</details>
    <h2>By label frequency</h2><p>Recall at the largest k of labels with a third of the training rows each.</p><${Table} caption="By label frequency" columns=${["labels", ...of.models.map((each) => `${each.model}#`)]}
      rows=${first.by_frequency.map((group, i) => [`${group.group}: ${count(group.labels)}`, ...of.models.map((each) => percent(each.by_frequency[i][Object.keys(group).filter((name) => name.startsWith("recall@")).pop()], 2))])} />
    ${others.map((each) => html`<h2>Labels that changed from ${first.model} to ${each.model}</h2><${Table} caption=${`Labels that changed to ${each.model}`} sortable=${true} columns=${["label", "change#", "right before#", "right after#", "rows#"]} empty="Every label is answered rightly as often as before."
      rows=${[...each.labels_gained, ...each.labels_lost].map(({ label, hits: [before, after], rows }) => [label, after - before, before, after, rows])} />`)}
    <h2>Time of an answer</h2><${Table} caption="Time of an answer" columns=${["time", ...of.models.map((each) => `${each.model}#`)]} rows=${[["per row", ...of.models.map((each) => duration(each.ms_per_row / 1000))]]} />`;
}

// Labels of the first two, if they are versions of one model: which have other weights.
function Weights({ models: [first, second] }) {
  const [name, from] = first.split(":"), [other, to] = second.split(":");
  const [of, error] = useLoaded(async () => (name === other ? get(`/v1/models/${segment(name)}:diff?from=${from}&to=${to}`) : null), [first, second]);
  if (!of) return html`<${Trouble} error=${error} />`;
  const names = ({ count: n, first: shown }) => `${shown.slice(0, 12).join(", ")}${n > 12 ? ", ..." : ""}`;
  return html`<h2>Weights of ${first} and ${second}</h2><p>${of.same_content ? "Both versions have the same content." : `${count(of.identical)} labels have the same weights, bit for bit.`}</p>
    <${Table} caption="Labels that differ" columns=${["labels", "number#", "names"]} rows=${["added", "removed", "changed"].map((kind) => [kind, count(of[kind].count), names(of[kind])])} />`;
}
