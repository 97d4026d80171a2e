// The form of a training, made from the solvers' own parameter tables.
import { html, useRef, useState } from "/static/vendor/htm-3.1.1/standalone.module.js";
import { change, get, newKey, segment } from "/static/console/api.js";
import { Button, Details, Field, Trouble, bytes, count, duration, useLoaded } from "/static/console/parts.js";

const MIB = 2 ** 20;
const LIMITS = [
  { name: "max_seconds", label: "Time limit in seconds", help: "Then the finished part is published; empty: none", min: 1, step: "any" },
  { name: "memory_limit", label: "Memory limit in MiB", help: "A training that is estimated to need more fails before it starts; some solvers read rows from files to keep it; empty: none", min: 1, step: "any" },
  { name: "timeout_seconds", label: "Running time at most, in seconds", help: "Over all attempts; then the job fails; empty: none", min: 1, step: "any" },
  { name: "max_attempts", label: "Attempts at most", help: "How often a lost process is started again; empty: chosen by the server", min: 1, max: 100, step: 1 },
  { name: "priority", label: "Priority", help: "Jobs with a larger number start first; empty: 0", min: -100, max: 100, step: 1 },
];

// "0 <= value <= 1" in words, from the limits of a parameter.
function range({ low, high, above }) {
  const parts = [above !== null && above !== undefined && `above ${above}`, low !== null && low !== undefined && `at least ${low}`, high !== null && high !== undefined && `at most ${high}`];
  return parts.filter(Boolean).join(", ");
}

function Parameter({ of, value }) {
  const help = [of.help, range(of), `default ${of.default}`].filter(Boolean).join("; ");
  const id = `param-${of.name}`;
  const control = of.choices
    ? html`<select id=${id} name=${id}>${of.choices.map((name) => html`<option value=${name} selected=${name === String(value ?? of.default)}>${name}</option>`)}</select>`
    : of.type === "str" ? html`<input id=${id} name=${id} defaultValue=${value ?? ""} placeholder=${of.default} />`
    : html`<input id=${id} name=${id} type="number" step=${of.type === "int" ? 1 : "any"} min=${of.low ?? of.above ?? undefined} max=${of.high ?? undefined} defaultValue=${value ?? ""} placeholder=${of.default} />`;
  return html`<${Field} id=${id} label=${of.name} help=${help}>${control}<//>`;
}

// Only parameters that differ from their defaults are sent.
function params(fields, solver) {
  const result = {};
  for (const { name, type, default: usual } of solver.parameters) {
    const text = fields.get(`param-${name}`);
    const value = type === "str" ? text : Number(text);
    if (text !== "" && value !== usual) result[name] = value;
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

export function Train({ query }) {
  const key = useRef(newKey());  // the same for a repeated click, so that it creates one job
  const lastBody = useRef("");
  const [name, setName] = useState(null);
  const [sending, setSending] = useState(false);
  const [failed, setFailed] = useState(null);
  const [estimate, setEstimate] = useState(null);
  const [found, error] = useLoaded(async () => ({
    solvers: (await get("/v1/solvers")).solvers,
    sets: (await get("/v1/datasets?limit=1000")).datasets.filter((set) => set.status === "READY"),
    job: query.from ? await get(`/v1/jobs/${segment(query.from)}`) : null,
  }), []);
  if (!found) return html`<h1>Train</h1><${Trouble} error=${error} />`;
  const { solvers, sets, job } = found, old = job?.spec || {};
  const solver = solvers.find((each) => each.name === (name ?? old.solver)) || solvers[0];
  const before = (limit) => (limit === "memory_limit" ? old.memory_limit && old.memory_limit / MIB : old[limit] ?? job?.[limit]) || "";
  const isAuto = solver.name === "ppdsparse";
  const bodyOf = (form) => {
    const fields = new FormData(form);
    const body = { dataset: fields.get("dataset"), model: fields.get("model"), solver: solver.name, params: params(fields, solver), workers: Number(fields.get("workers")), calibrate: fields.has("calibrate") };
    if (old.ks) body.ks = old.ks;
    if (fields.get("memory_limit")) body.memory_limit = Math.max(1, Math.round(Number(fields.get("memory_limit")) * MIB));
    for (const limit of ["max_seconds", "timeout_seconds", "max_attempts", "priority"]) if (fields.get(limit)) body[limit] = Number(fields.get(limit));
    if (isAuto && fields.has("auto")) Object.assign(body, { auto: true, ...(old.auto && { select: old.select }) });
    if (fields.get("pool")) body.pool = fields.get("pool");
    return body;
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
  if (!sets.length) return html`<h1>Train</h1><p>There is no data set that is READY: <a href="#/datasets">upload a file</a>.</p>`;
  return html`<h1>Train</h1><form onSubmit=${submit} aria-label="Train"><div class="fields">
      <${Field} id="dataset" label="Data set"><select id="dataset" name="dataset">${sets.map((set) => html`<option value=${set.id} selected=${set.id === (query.dataset ?? old.dataset)}>${set.name} (${set.created.slice(0, 16)})</option>`)}</select><//>
      <${Field} id="model" label="Model" help="Name under which it is published"><input id="model" name="model" required defaultValue=${query.model ?? old.name ?? ""} /><//>
      <${Field} id="solver" label="Solver" help=${solver.help}><select id="solver" name="solver" onChange=${(event) => setName(event.target.value)}>${solvers.map((each) => html`<option value=${each.name} selected=${each.name === solver.name}>${each.name}</option>`)}</select><//>
      <${Field} id="pool" label="Pool" help="Where labels are trained"><select id="pool" name="pool">${["", "serial", "threads", "ray"].map((each) => html`<option value=${each} selected=${each === (old.pool ?? "")}>${each || "chosen by the server"}</option>`)}</select><//>
      <${Field} id="workers" label="Workers" help="0: all cores"><input id="workers" name="workers" type="number" min="0" max="100000" required defaultValue=${old.workers ?? 0} /><//>
      <p><label><input type="checkbox" name="calibrate" checked=${old.calibrate} /> Also fit probabilities (needs held-out rows)</label></p>
      ${isAuto && html`<p><label><input type="checkbox" name="auto" checked=${old.auto} /> Choose parameters on held-out training rows</label></p>`}
    </div>
    <details open=${Object.keys(old.params || {}).length > 0}><summary>Parameters of ${solver.name}</summary><div class="fields" key=${solver.name}>${solver.parameters.map((each) => html`<${Parameter} of=${each} value=${solver.name === old.solver ? old.params?.[each.name] : undefined} />`)}</div></details>
    <details open=${LIMITS.some((limit) => before(limit.name) !== "")}><summary>Limits and priority</summary><div class="fields">${LIMITS.map(({ name, label, help, ...more }) => html`
      <${Field} id=${name} label=${label} help=${help}><input id=${name} name=${name} type="number" defaultValue=${before(name)} ...${more} /><//>`)}</div></details>
    <p><${Button} type="submit" class="main" scope="submit" disabled=${sending}>Train<//> <${Button} scope="submit" disabled=${sending} onClick=${(event) => showEstimate(event.target.form)}>Estimate<//></p>
    <${Trouble} error=${failed} />${estimate && html`<${Estimate} of=${estimate} />`}</form>`;
}
