// Versions of a model: measures side by side, differences, and the report of one version.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { download, get, getText, segment } from "./api.js";
import { Picture } from "./pictures.js";
import { Button, bytes, count, duration, Details, Field, Table, Trouble, useLoaded, when } from "./parts.js";

const MAX_COLUMNS = 6;
// heading and text of each picture
const PICTURES = { by_frequency: ["By label frequency", "Ten groups of labels, rarest first: equally many labels, or equally many training rows."],
  costs: ["Cost by label frequency"], certificates: ["Certificates", "Duality gaps of the labels: how far each can be from its optimum, as a share of its null objective."],
  timeline: ["Workers"], stages: ["Stages"], objective: ["Objective"], oracle: ["Approximate search"], calibration: ["Calibration", "Points on the dashed line: of the answers with a probability of 0.7, seven of ten are right."] };
const SIZES = { solver: (of) => of.solver, "created (UTC)": (of) => when(of.created), labels: (of) => count(of.n_labels), features: (of) => count(of.n_features),
  weights: (of) => count(of.nnz), size: (of) => bytes(of.n_bytes), probabilities: (of) => (of.calibrated ? "yes" : "no") };
const value = (number) => (typeof number === "number" ? (Number.isInteger(number) ? count(number) : number.toFixed(4)) : number ?? "");
const SideBySide = ({ caption, versions }) => {
  const measures = [...new Set(versions.flatMap((each) => Object.keys(each.measures)))].filter((name) => versions.some((each) => typeof each.measures[name] === "number"));
  return html`<${Table} caption=${caption} columns=${["value", ...versions.map((each) => `version ${each.version}#`)]} rows=${[
    ...Object.entries(SIZES).map(([name, show]) => [name, ...versions.map(show)]), ...measures.map((name) => [name, ...versions.map((each) => value(each.measures[name]))])]} />`;
};

// The version shown, and the newest others.
export function Versions({ name, numbers, version }) {
  const shown = [...new Set([version, ...[...numbers].reverse()])].slice(0, MAX_COLUMNS).sort((a, b) => b - a);
  const [versions, error] = useLoaded(() => Promise.all(shown.map((each) => get(`/v1/models/${segment(name)}/versions/${each}`))), [name, String(shown)]);
  return html`<h2>Measures</h2><${Trouble} error=${error} />${versions && html`<${SideBySide} caption="Measures" versions=${versions} />`}
    ${numbers.length > shown.length && html`<p class="note">The newest ${shown.length} of ${count(numbers.length)} versions.</p>`}
    ${numbers.length > 1 && html`<${Compare} name=${name} numbers=${numbers} version=${version} />`}`;
}

function Compare({ name, numbers, version }) {
  const [pair, setPair] = useState(null);
  const earlier = numbers.filter((each) => each < version).pop() ?? numbers.find((each) => each !== version);
  const submit = (event) => { event.preventDefault(); const fields = new FormData(event.target); setPair([fields.get("from"), fields.get("to")]); };
  const select = (id, chosen) => html`<select id=${id} name=${id}>${numbers.map((each) => html`<option value=${each} selected=${each === chosen}>${each}</option>`)}</select>`;
  return html`<h2>Differences</h2><form onSubmit=${submit} aria-label="Differences"><div class="fields"><${Field} id="from" label="From version">${select("from", earlier)}<//><${Field} id="to" label="To version">${select("to", version)}<//></div>
    <button>Compare</button></form>${pair && html`<${Difference} name=${name} pair=${pair} />`}`;
}

function Difference({ name, pair }) {
  const [of, error] = useLoaded(() => get(`/v1/models/${segment(name)}:diff?from=${pair[0]}&to=${pair[1]}`), [name, String(pair)]);
  if (!of || String(of.versions.map((each) => each.version)) !== String(pair)) return error ? html`<${Trouble} error=${error} />` : html`<p role="status">Comparing.</p>`;
  const names = ({ count: n, first }) => `${first.join(", ")}${n > first.length ? ", ..." : ""}`;
  return html`<p role="status">${of.same_content ? "Both versions have the same content." : `${count(of.identical)} labels have the same weights, bit for bit.`}</p><${SideBySide} caption="Both versions" versions=${of.versions} />
    <${Table} caption="Parameters that differ" columns=${["parameter", ...pair.map((each) => `version ${each}`)]} empty="All parameters are equal." rows=${Object.entries(of.params).map(([key, values]) => [key, ...values.map((each) => (each === null ? "none" : String(each)))])} />
    <${Table} caption="Labels that differ" columns=${["labels", "number#", "names"]} rows=${["added", "removed", "changed"].map((kind) => [kind, count(of[kind].count), names(of[kind])])} />`;
}

export function Version({ name, version }) {
  const [failed, setFailed] = useState(null);
  const [sending, setSending] = useState(false);
  const path = `/v1/models/${segment(name)}/versions/${version}`;
  const [found, error] = useLoaded(async () => ({ of: await get(path), card: await getText(`${path}/card`) }), [path]);
  if (!found) return html`<${Trouble} error=${error} />`;
  const save = async () => {
    setFailed(null);
    setSending(true);
    await download(`${path}/archive`, `${name}-${version}.tar`).catch(setFailed);
    setSending(false);
  };
  return html`<h2>Version ${version}</h2><${Details} of=${[["SHA-256", `${found.of.sha256.slice(0, 16)}...`], ["Data set", `${found.of.dataset_hash.slice(0, 16)}...`], ["Aliases", found.of.aliases.join(", ")]]} />
    <p><a href=${`#/ask?model=${segment(`${name}:${version}`)}`}>Ask this version</a> <${Button} scope="read" disabled=${sending} onClick=${save}>Download (${bytes(found.of.n_bytes)})<//></p><${Trouble} error=${failed} />
    <details><summary>Model card</summary><pre tabindex="0">${found.card}</pre></details><${Report} path=${path} />`;
}

function Report({ path }) {
  const [of, error] = useLoaded(() => get(`${path}/report`), [path]);
  if (!of) return html`<${Trouble} error=${error} />`;
  const { training } = of;
  return html`<h2>Training</h2><${Details} of=${[["Time", training.makespan !== undefined ? duration(training.makespan) : ""], ["Core time", training.core_seconds !== undefined ? duration(training.core_seconds) : ""], ["Workers", training.workers],
      ["Labels with a certificate", training.labels_certified !== undefined ? `${count(training.labels_certified)} of ${count(training.labels)}` : ""], ["Epochs", count(training.epochs)], ["Why it ended", training.stopped]]} />
    <details><summary>Parameters</summary><${Table} caption="Parameters" columns=${["parameter", "value"]} rows=${Object.entries(of.params).map(([name, each]) => [name, String(each)])} /></details>
    ${of.pictures.map((name) => html`<h2>${PICTURES[name]?.[0] ?? name}</h2>${PICTURES[name]?.[1] && html`<p>${PICTURES[name][1]}</p>`}<${Picture} key=${name} path=${`${path}/pictures/${name}`} />`)}`;
}
