// The form of a training, made from the solvers' own parameter tables.
import { html, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, newKey, segment } from "./api.js";
import { DemoData } from "./datasets.js";
import { Button, Details, Field, NAME, Trouble, bytes, count, duration, setOptions, useLoaded } from "./parts.js";

const MIB = 2 ** 20;
const AUTO = "auto", AUTO_SOLVER = "ppdsparse", AUTO_MEASURE = "P@1+nDCG@5";
const MIN_AUTO_ROWS = 100;  // of training: a choice on fewer is arbitrary

// "0 <= value <= 1" in words, from the limits of a parameter.
function range({ low, high, above }) {
  const parts = [above !== null && above !== undefined && `above ${above}`, low !== null && low !== undefined && `at least ${low}`, high !== null && high !== undefined && `at most ${high}`];
  return parts.filter(Boolean).join(", ");
}

const usual = (of) => (of.set_by_server ? null : of.default);

// A field of the form for a parameter of a solver or an option; sizes are entered in MiB.
function Parameter({ of, value, id = `param-${of.name}` }) {
  const text = usual(of) ?? (of.set_by_server ? "chosen by the server" : "none"), bytes = of.unit === "bytes";
  const help = [of.help, of.type !== "str" && range(of), `default ${of.type === "bool" ? (of.default ? "yes" : "no") : text}`].filter(Boolean).join("; ");
  const names = of.choices && [...(usual(of) === null ? [""] : []), ...of.choices];
  const control = names
    ? html`<select id=${id} name=${id}>${names.map((name) => html`<option value=${name} selected=${name === String(value ?? usual(of) ?? "")}>${name || text}</option>`)}</select>`
    : of.type === "bool" ? html`<input id=${id} name=${id} type="checkbox" defaultChecked=${value ?? of.default} />`
    : of.type === "str" ? html`<input id=${id} name=${id} maxlength=${of.high ?? undefined} defaultValue=${value ?? ""} placeholder=${text} />`
    : html`<input id=${id} name=${id} type="number" step=${of.type === "int" && !bytes ? 1 : "any"} min=${bytes ? 0 : of.low ?? of.above ?? undefined} max=${bytes ? undefined : of.high ?? undefined} defaultValue=${(bytes && value ? value / MIB : value) ?? ""} placeholder=${text} />`;
  return html`<${Field} id=${id} label=${bytes ? `${of.name} in MiB` : of.name} help=${help}>${control}<//>`;
}

// Only values that differ from their defaults are sent.
function values(fields, declared, prefix) {
  const result = {};
  for (const each of declared) {
    const { name, type, unit } = each, text = fields.get(`${prefix}-${name}`);
    const value = type === "bool" ? text !== null : type === "str" ? text : unit === "bytes" ? Math.max(1, Math.round(Number(text) * MIB)) : Number(text);
    if (text !== "" && value !== usual(each)) result[name] = value;
  }
  return result;
}

function Estimate({ of }) {
  const available = Object.entries(of.available_bytes).map(([name, free]) => `${bytes(free)} (${name})`).join(", ");
  return html`<section aria-live="polite"><h2>Estimate</h2><${Trouble} error=${!of.fits && { message: of.problem }} /><${Details} of=${[
    ["time", duration(of.seconds)], ["core time", duration(of.core_seconds)], ["choice of parameters, at most", of.selection_core_seconds && duration(of.selection_core_seconds)],
    ["memory", bytes(of.memory_bytes)], ["available", available], ["mapped data", bytes(of.mapped_bytes)], ["disk", `${bytes(of.disk_bytes)} of ${bytes(of.disk_free_bytes)}`],
    ["workers", of.workers], ["weights", count(of.weights)], ["based on", of.probed_labels ? `${count(of.probed_labels)} labels solved` : "sizes alone"],
  ]} /></section>`;
}

// Whether parameters are chosen on held-out training rows, and for which measure. of: the declared option.
function Auto({ of, value }) {
  const [isOn, setOn] = useState(Boolean(value));
  const id = `option-${of.name}`;
  const help = "P, recall, nDCG, PSP or PSnDCG with @k, or a sum of them, on held-out training rows. It takes the work of about two more trainings, and more for options of the texts: Estimate says how much.";
  return html`<fieldset><legend>Parameters</legend>
    <label><input type="checkbox" checked=${isOn} onChange=${(event) => setOn(event.target.checked)} /> Choose parameters and text options for me</label>
    ${isOn && html`<${Field} id=${id} label="Measure" help=${help}><input id=${id} name=${id} required pattern="[A-Za-z0-9@+]+" maxlength=${of.high} defaultValue=${value || AUTO_MEASURE} /><//>`}</fieldset>`;
}

export function Train({ query }) {
  const key = useRef(newKey());  // the same for a repeated click, so that it creates one job
  const lastBody = useRef("");
  const [name, setName] = useState(null);
  const [dataset, setDataset] = useState(query.dataset ?? null);
  const [sending, setSending] = useState(false);
  const [failed, setFailed] = useState(null);
  const [estimate, setEstimate] = useState(null);
  const [found, error] = useLoaded(async () => ({
    ...(await get("/v1/solvers")),
    sets: (await get("/v1/datasets?limit=1000")).datasets.filter((set) => set.status === "READY"),
    job: query.from ? await get(`/v1/jobs/${segment(query.from)}`) : null,
  }), []);
  if (!found) return html`<h1>Train</h1><${Trouble} error=${error} />`;
  const { training, sets, job } = found, old = job?.spec || {};
  const solvers = found.solvers.filter((each) => !each.baseline || each.name === old.solver);
  const solver = solvers.find((each) => each.name === (name ?? old.solver)) || solvers[0];
  const given = job ? setOptions(training, job) : {}, auto = training.find((each) => each.name === AUTO), options = training.filter((each) => each !== auto);
  const set = sets.find((each) => each.id === (dataset ?? old.dataset)) ?? sets[0];
  const isLarge = set?.stats.splits?.train?.n_rows >= MIN_AUTO_ROWS;
  const bodyOf = (form) => {
    const fields = new FormData(form);
    return { dataset: fields.get("dataset"), model: fields.get("model"), solver: solver.name, params: values(fields, solver.parameters, "param"), ...values(fields, options, "option"), ...(fields.get(`option-${AUTO}`) && { [AUTO]: fields.get(`option-${AUTO}`) }) };
  };
  const perform = async (action) => {
    setSending(true);
    setFailed(null);
    try {
      await action();
    } catch (problem) {
      setFailed(problem);
    }
    setSending(false);
  };
  const showEstimate = (form) => form.reportValidity() && perform(async () => {
    setEstimate(null);
    setEstimate(await change("POST", "/v1/jobs:estimate", bodyOf(form)));
  });
  const submit = (event) => {
    event.preventDefault();
    const body = bodyOf(event.target);
    if (lastBody.current && lastBody.current !== JSON.stringify(body)) key.current = newKey();
    lastBody.current = JSON.stringify(body);
    perform(async () => {
      location.hash = `#/jobs/${(await change("POST", "/v1/jobs", body, { "Idempotency-Key": key.current })).id}`;
    });
  };
  if (!sets.length) return html`<h1>Train</h1><p>There is no data set that is READY: <a href="#/datasets">upload a file</a>, or try the demo data.</p><${DemoData} />`;
  return html`<h1>Train</h1><form onSubmit=${submit} aria-label="Train"><div class="fields">
      <${Field} id="dataset" label="Data set"><select id="dataset" name="dataset" onChange=${(event) => setDataset(event.target.value)}>${sets.map((each) => html`<option value=${each.id} selected=${each.id === set.id}>${each.name} (${each.created.slice(0, 10)})</option>`)}</select><//>
      <${Field} id="model" label="Model" help="Name under which it is published"><input id="model" name="model" required pattern=${NAME} title="Lower-case letters, digits, . _ -" defaultValue=${query.model ?? old.name ?? ""} /><//>
      <${Field} id="solver" label="Solver" help=${solver.help}><select id="solver" name="solver" onChange=${(event) => setName(event.target.value)}>${solvers.map((each) => html`<option value=${each.name} selected=${each.name === solver.name}>${each.name}</option>`)}</select><//>
    </div>
    ${solver.name === AUTO_SOLVER && html`<${Auto} key=${isLarge} of=${auto} value=${job ? given[AUTO] ?? "" : isLarge ? AUTO_MEASURE : ""} />`}
    <details open=${Object.keys(old.params || {}).length > 0}><summary>Parameters of ${solver.name}</summary><div class="fields" key=${solver.name}>${solver.parameters.map((each) => html`<${Parameter} of=${each} value=${solver.name === old.solver ? old.params?.[each.name] : undefined} />`)}</div></details>
    <details open=${Object.keys(given).some((name) => name !== AUTO)}><summary>Options</summary><div class="fields">${options.map((each) => html`<${Parameter} of=${each} id=${`option-${each.name}`} value=${given[each.name]} />`)}</div></details>
    <p class="bar"><${Button} type="submit" class="main" scope="submit" disabled=${sending}>Train<//> <${Button} scope="submit" disabled=${sending} onClick=${(event) => showEstimate(event.target.form)}>Estimate<//></p>
    <${Trouble} error=${failed} />${estimate && html`<${Estimate} of=${estimate} />`}</form>`;
}
