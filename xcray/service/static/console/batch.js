// Answers for a whole file: upload, a job with progress, and files to download.
import { html, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, newKey, segment, upload } from "./api.js";
import { Button, Field, Trouble, useAction } from "./parts.js";

const FORMATS = ["jsonl", "csv", "tsv", "parquet", "text", "svmlight", "xc", "fasttext"];
const formatOf = (name) => FORMATS.find((format) => name.toLowerCase().split(".").includes(format)) ?? (/\.txt/i.test(name) ? "text" : null);

export function Batch({ model, calibrated }) {
  const [error, perform] = useAction();
  const [sent, setSent] = useState(null);  // share of the file, null: nothing is being sent
  const [format, setFormat] = useState("jsonl");
  const sending = useRef({});  // the file that was sent: it is not sent again after an error
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target), file = fields.get("file");
    perform(async () => {
      setSent(0);
      if (sending.current.file !== file) sending.current = { file, key: newKey(), id: (await upload("/v1/uploads", file, newKey(), setSent)).id };
      const body = { upload: sending.current.id, format, top_k: Number(fields.get("k")), on_error: fields.has("skip") ? "skip" : "fail", ...(fields.has("probabilities") && { probabilities: true }) };
      const job = await change("POST", `/v1/models/${segment(model)}:batchPredict`, body, { "Idempotency-Key": sending.current.key });
      location.hash = `#/jobs/${job.id}`;
    }).finally(() => setSent(null));
  };
  const choose = ({ target }) => target.files[0] && setFormat(formatOf(target.files[0].name) ?? format);
  return html`<details><summary>A whole file</summary><form onSubmit=${submit} aria-label="Whole file"><div class="fields">
      <${Field} id="batch-file" label="File of rows" help="One text per row; the answers are downloaded as CSV, JSON lines or Parquet"><input id="batch-file" name="file" type="file" required onChange=${choose} /><//>
      <${Field} id="batch-format" label="Format"><select id="batch-format" value=${format} onChange=${(event) => setFormat(event.target.value)}>${FORMATS.map((name) => html`<option value=${name}>${name}</option>`)}</select><//>
      <${Field} id="batch-k" label="Labels per row"><input id="batch-k" name="k" type="number" min="1" max="10000" required defaultValue="5" /><//>
      <fieldset class="field"><legend>Rows</legend><label><input type="checkbox" name="skip" /> Skip rows that cannot be read</label>
        ${calibrated && html`<label><input type="checkbox" name="probabilities" defaultChecked=${true} /> Probabilities</label>`}</fieldset></div>
    <p><${Button} type="submit" scope="submit" disabled=${sent !== null}>Predict<//>${sent !== null && html`<progress max="1" value=${sent} aria-label="upload"></progress>`}</p><${Trouble} error=${error} /></form></details>`;
}
