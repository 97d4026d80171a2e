// The next version of a model by one change: rows, probabilities, thresholds or labels.
import { html, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change as request, get, newKey, segment } from "./api.js";
import { Button, Field, NAME, Trouble, useAction, useLoaded } from "./parts.js";

// Name, what it does, and the further fields of each change.
const CHANGES = {
  calibrate: ["Fit probabilities", "To the held-out rows of the data set; rankings stay the same.", []],
  thresholds: ["Fit a threshold per label", "To the held-out rows; predictions then decide which labels hold.", ["objective"]],
  rows: ["Update to changed rows", "The data set must be made from that of this version; only labels that the change affects are solved again.", []],
  add: ["Add labels", "Those of the data set that this version lacks, or only the named ones.", ["labels"]],
  retrain: ["Train labels again", "On the rows of the data set; all others keep their weights.", ["labels"]],
  remove: ["Remove labels", "The others keep their weights.", ["labels"]],
  merge: ["Merge labels", "Into one, trained on the rows of all.", ["labels", "into"]],
  rename: ["Rename a label", "Its weights stay the same.", ["labels", "into"]],
};
const lines = (text) => (text || "").split("\n").map((line) => line.trim()).filter(Boolean);

export function Change({ of, query = {} }) {
  const reference = `${of.name}:${of.version}`;
  const [failed, perform] = useAction();
  const [name, setName] = useState(query.change in CHANGES ? query.change : of.calibrated ? "thresholds" : "calibrate");
  const [objective, setObjective] = useState("macro-F1");
  const sent = useRef({});  // the last request: repeated unchanged, it is the same job
  const [sets, error] = useLoaded(async () => (await get("/v1/datasets?limit=1000")).datasets.filter((set) => set.status === "READY"), []);
  if (!sets) return html`<h2>Change</h2><${Trouble} error=${error} />`;
  if (!sets.length) return html`<h2>Change</h2><p>There is no data set that is READY: <a href="#/datasets">upload one</a> with the features of this version.</p>`;
  const [, help, more] = CHANGES[name];
  const submit = (event) => {
    event.preventDefault();
    const fields = Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value));
    const body = { ...fields, ...(fields.labels && { labels: lines(fields.labels) }), ...(fields.precision && { precision: Number(fields.precision) }), ...(fields.weight && { weight: Number(fields.weight) / 100 }) };
    if (sent.current.body !== JSON.stringify(body)) sent.current = { body: JSON.stringify(body), key: newKey() };
    perform(async () => {
      location.hash = `#/jobs/${(await request("POST", `/v1/models/${segment(reference)}:update`, body, { "Idempotency-Key": sent.current.key })).id}`;
    });
  };
  const own = sets.find((set) => set.id === query.dataset) ?? sets.find((set) => set.name === of.dataset_name) ?? sets[0];
  return html`<h2>Change</h2><p>A job makes the next version of ${of.name} from version ${of.version}, which stays as it is.</p>
    <form onSubmit=${submit} aria-label="Change"><div class="fields">
      <${Field} id="change" label="Change" help=${help}><select id="change" name="change" onChange=${(event) => setName(event.target.value)}>${Object.entries(CHANGES).map(([id, [title]]) => html`<option value=${id} selected=${id === name}>${title}</option>`)}</select><//>
      <${Field} id="change-dataset" label="Data set" help="With the features of this version"><select id="change-dataset" name="dataset">${sets.map((set) => html`<option value=${set.id} selected=${set === own}>${set.name} (${set.created.slice(0, 10)})</option>`)}</select><//>
      ${more.includes("labels") && html`<${Field} id="change-labels" label="Labels" help=${name === "add" ? "One per line; empty: all new ones" : name === "rename" ? "The label to rename" : "One per line"}><textarea id="change-labels" name="labels" rows=${name === "rename" ? 1 : 3} required=${name !== "add"}></textarea><//>`}
      ${more.includes("into") && html`<${Field} id="into" label="New name"><input id="into" name="into" required /><//>`}
      ${more.includes("objective") && html`<${Field} id="objective" label="What to maximise"><select id="objective" name="objective" onChange=${(event) => setObjective(event.target.value)}>${["macro-F1", "micro-F1", "precision"].map((each) => html`<option value=${each} selected=${each === objective}>${each === "precision" ? "recall at a precision" : each}</option>`)}</select><//>
        ${objective === "precision" && html`<${Field} id="precision" label="Least precision"><input id="precision" name="precision" type="number" min="0.01" max="1" step="any" required /><//>`}`}
      <${Field} id="gate" label="Gate" help="What the new version must reach against this one before the alias moves, such as P@1 >= -0.2"><input id="gate" name="gate" maxlength="1000" /><//>
      <${Field} id="change-alias" label="Alias that then moves"><input id="change-alias" name="alias" pattern=${NAME} title="Lower-case letters, digits, . _ -" /><//>
      <${Field} id="weight" label="Its share of the alias's requests, in percent" help="Empty: all"><input id="weight" name="weight" type="number" min="0.1" max="100" step="any" /><//>
    </div><p><${Button} type="submit" class="main" scope="submit">Make the next version<//></p><${Trouble} error=${failed} /></form>`;
}
