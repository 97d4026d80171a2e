// The form that uploads a file: its first rows, and how they are read.
import { html, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, newKey, upload } from "./api.js";
import { Button, Field, NAME, Table, Trouble } from "./parts.js";
import { DELIMITERS, firstRows, guessDelimiter, guessSeparator, longestColumn, readHead } from "./preview.js";

const FORMATS = ["jsonl", "csv", "tsv", "fasttext", "svmlight", "xc", "parquet", "npz"];
const TEXTS = ["jsonl", "csv", "tsv", "parquet"];
const LIKELY_LABELS = ["labels", "label", "tags", "categories", "category", "subjects", "topics"];
const DELIMITER_NAMES = { ",": "comma", ";": "semicolon", "|": "|", "\t": "tab" };
const LABELS = {
  text_fields: "Text columns", label_field: "Label column", label_columns: "Columns of 0 and 1", label_separator: "Separator of labels", delimiter: "Delimiter", header: "The first line is a header",
  skip_bad: "Skip bad lines", zero_based: "Features start at 0", test_fraction: "Share of rows held out",
};
// An option in a message: `text_fields`, `delimiter=';'`, or `--label-separator '/' (label_separator)`.
const NAMES = Object.keys(LABELS).filter((name) => name.includes("_"));
const OPTION = new RegExp(`--(${NAMES.join("|").replaceAll("_", "-")})( '[^']*')?( \\(\\w+\\))?|\\b(${NAMES.join("|")}|delimiter(?==))\\b(?:=('[^']*'|\\w+))?`, "g");

// A message about reading options, with the names of the form's fields.
export function inFormWords(text) {
  return text?.replace("header=false and columns=NAMES", `no tick at “${LABELS.header}”`)
    .replace(OPTION, (_, flag, given, __, name, value) => [`“${LABELS[flag ? flag.replaceAll("-", "_") : name]}”`, (given ?? value ?? "").trim()].filter(Boolean).join(" "));
}
export const formError = (error) => error && { message: inFormWords(error.message), hint: inFormWords(error.hint) };

// The columns that a file most likely means: those of the defaults, else the longest for the text.
function suggestColumns(shown) {
  const { columns } = shown, label = LIKELY_LABELS.find((name) => columns?.includes(name)) ?? "";
  if (!columns?.length) return { texts: [], label, separator: "" };
  return { texts: columns.includes("text") ? ["text"] : [longestColumn(shown)], label, separator: guessSeparator(shown, label) };
}

function suggestName(name) {
  return name.toLowerCase().split(".")[0].replace(/[^a-z0-9_-]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 64);
}

// The rows as the service will read them, with what the chosen columns mean.
function Preview({ shown, how }) {
  if (shown.lines) return html`<h2>First lines</h2><pre aria-label="First lines">${shown.lines.join("\n")}</pre>`;
  if (!shown.columns.length) return html`<p role="status">The first lines are not of the format ${how.format}: choose another format.</p>`;
  const cell = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));
  const short = (text) => (text.length > 100 ? `${text.slice(0, 100)}...` : text);
  const use = (name) => (name === how.label ? `${name} (labels)` : how.texts.includes(name) ? `${name} (text)` : name);
  const first = shown.rows[0]?.[how.label], labels = typeof first === "string" ? first.split(how.separator || "|").map((label) => label.trim()).filter(Boolean) : first;
  return html`<h2>First rows</h2><${Table} caption="First rows" columns=${shown.columns.map(use)} rows=${shown.rows.map((row) => shown.columns.map((name) => short(cell(row[name]))))} />
    ${Array.isArray(labels) && html`<p role="status">Labels of the first row: ${labels.map((label) => html`<code>${cell(label)}</code> `)}</p>`}`;
}

// Columns, and the fields of the objects in them.
function labelChoices({ columns, rows }) {
  return columns.flatMap((name) => [name, ...Object.keys([rows[0]?.[name]].flat()[0] ?? {}).filter((key) => !/^\d+$/.test(key)).map((key) => `${name}.${key}`)]);
}

// Which columns are the text and the labels; without a preview their names are typed.
function Columns({ shown, how, set }) {
  const { texts, label } = how, columns = shown?.columns ?? [];
  const several = html`<${Field} label=${LABELS.label_columns} id="label_columns" help="In place of one column: a,b or first:last or prefix*"><input id="label_columns" value=${how.labelColumns} onInput=${(event) => set({ labelColumns: event.target.value })} /><//>`;
  if (!columns.length) {
    return html`<${Field} label=${LABELS.text_fields} id="texts" help="Separated by commas; default: text"><input id="texts" value=${texts.join(",")} onInput=${(event) => set({ texts: event.target.value.split(",").filter(Boolean) })} /><//>
      <${Field} label=${LABELS.label_field} id="label" help="Default: labels"><input id="label" value=${label} onInput=${(event) => set({ label: event.target.value })} /><//>${several}`;
  }
  const tick = (name) => set({ texts: columns.filter((each) => (each === name ? !texts.includes(name) : texts.includes(each))) });
  return html`<fieldset class="field"><legend>${LABELS.text_fields}</legend>${columns.map((name) => html`<label><input type="checkbox" checked=${texts.includes(name)} onChange=${() => tick(name)} /> ${name}</label>`)}</fieldset>
    <${Field} label=${LABELS.label_field} id="label"><select id="label" required=${!how.labelColumns} value=${label} onChange=${(event) => set({ label: event.target.value, separator: guessSeparator(shown, event.target.value) })}><option value="">choose a column</option>${labelChoices(shown).map((name) => html`<option value=${name}>${name}</option>`)}</select><//>${several}`;
}

// The reading options of the service: only those that the format has.
function readingOptions(how, shown, hasTest) {
  const { format, texts, label, labelColumns, separator, delimiter, header, zeroBased, skipBad, share } = how, isTable = Boolean(DELIMITERS[format]);
  return {
    ...(!hasTest && { test_fraction: Number(share) }),
    ...(skipBad && { skip_bad: true }),
    ...(format === "svmlight" && zeroBased && { zero_based: true }),
    ...(TEXTS.includes(format) && { ...(texts.length && { text_fields: texts }), ...(labelColumns ? { label_columns: labelColumns } : label && { label_field: label }), ...(separator && { label_separator: separator }) }),
    ...(isTable && delimiter !== DELIMITERS[format][0] && { delimiter }),
    ...(isTable && !header && { header: false, columns: shown?.columns ?? [] }),
  };
}

const START = { format: "jsonl", name: "", texts: [], label: "", labelColumns: "", separator: "", delimiter: ",", header: true, zeroBased: false, skipBad: false, share: "0.1" };

export function Upload() {
  const last = useRef({});  // the latest request: repeated after an error, it has the same key
  const uploads = useRef({});  // ids of files that were sent, so that other options do not send them again
  const [head, setHead] = useState(null);  // null: cannot be shown; undefined: being read
  const [how, setHow] = useState(START);
  const [files, setFiles] = useState({});
  const [sent, setSent] = useState(null);  // share of the files, null: nothing is being sent
  const [error, setError] = useState(null);
  const set = (changes) => setHow((old) => ({ ...old, ...changes }));
  const rowsOf = (text, next) => (typeof text === "string" ? firstRows(text, next) : null);
  const shown = rowsOf(head, how);
  // Suggest columns again, after the file or a setting that changes them.
  const read = (changes, text = head) => setHow((old) => {
    const next = { ...old, ...changes(old) };
    return { ...next, ...suggestColumns(rowsOf(text, next) ?? {}) };
  });
  const choose = async ({ target }) => {
    const file = target.files[0];
    setFiles((old) => ({ ...old, train: file }));
    setError(null);
    setHead(undefined);
    const text = file ? await readHead(file) : null;
    if (target.files[0] !== file) return;  // another one was chosen meanwhile
    setHead(text);
    if (!file) return;
    const endings = file.name.toLowerCase().split(".").slice(1);
    read((old) => {
      const format = FORMATS.find((each) => endings.includes(each)) ?? old.format, marks = DELIMITERS[format];
      return { name: old.name || suggestName(file.name), format, delimiter: marks && text ? guessDelimiter(text, format) : (marks ?? [","])[0] };
    }, text);
  };
  const submit = async (event) => {
    event.preventDefault();
    const { train, test, labels } = files, isText = TEXTS.includes(how.format);
    if (isText && shown?.columns?.length && !how.texts.length) return setError({ message: `Choose at least one column at “${LABELS.text_fields}”.` });
    const body = { name: how.name, format: how.format, options: readingOptions(how, shown, Boolean(test)) };
    const parts = Object.entries({ train, test, labels }).filter(([, file]) => file);
    const total = Math.max(1, parts.reduce((sum, [, file]) => sum + file.size, 0));
    setError(null);
    setSent(0);
    try {
      let done = 0;
      body.uploads = {};
      for (const [part, file] of parts) {
        const before = done, file_id = [part, file.name, file.size, file.lastModified].join();
        uploads.current[file_id] ??= (await upload("/v1/uploads", file, newKey(), (share) => setSent((before + share * file.size) / total))).id;
        body.uploads[part] = uploads.current[file_id];
        done += file.size;
      }
      const request = JSON.stringify(body);
      if (request !== last.current.request) last.current = { request, key: newKey() };
      location.hash = `#/datasets/${(await change("POST", "/v1/datasets", body, { "Idempotency-Key": last.current.key })).id}`;
    } catch (problem) {
      if (problem.status === 404) uploads.current = {};  // an upload was removed: the next click sends the files again
      setError(problem);
    }
    setSent(null);
  };
  const isTable = Boolean(DELIMITERS[how.format]);
  return html`<form onSubmit=${submit} aria-label="Upload"><div class="fields">
      <${Field} label="File" id="file"><input id="file" type="file" required onChange=${choose} /><//>
      <${Field} label="Name" id="name" help="Lower-case letters, digits, . _ -"><input id="name" required pattern=${NAME} title="Lower-case letters, digits, . _ -" value=${how.name} onInput=${(event) => set({ name: event.target.value })} /><//>
      <${Field} label="Format" id="format"><select id="format" value=${how.format} onChange=${({ target }) => read(() => ({ format: target.value, delimiter: (DELIMITERS[target.value] ?? [","])[0] }))}>${FORMATS.map((name) => html`<option value=${name}>${name}</option>`)}</select><//>
      ${isTable && DELIMITERS[how.format].length > 1 && html`<${Field} label=${LABELS.delimiter} id="delimiter"><select id="delimiter" value=${how.delimiter} onChange=${({ target }) => read(() => ({ delimiter: target.value }))}>${DELIMITERS[how.format].map((mark) => html`<option value=${mark}>${DELIMITER_NAMES[mark]}</option>`)}</select><//>`}
      ${TEXTS.includes(how.format) && html`<${Columns} shown=${shown} how=${how} set=${set} />
        <${Field} label=${LABELS.label_separator} id="separator" help="Between labels in one field; default: |"><input id="separator" maxlength="20" value=${how.separator} onInput=${(event) => set({ separator: event.target.value })} /><//>`}
      <${Field} label="Held-out rows" id="test" help="A second file to measure accuracy"><input id="test" type="file" onChange=${({ target }) => setFiles((old) => ({ ...old, test: target.files[0] }))} /><//>
      <${Field} label="Vocabulary" id="labels" help="Names of labels: a file of an id, a tab and a name per line, or JSON lines"><input id="labels" type="file" onChange=${({ target }) => setFiles((old) => ({ ...old, labels: target.files[0] }))} /><//>
      <${Field} label=${LABELS.test_fraction} id="held_out" help=${files.test ? "There is a file of held-out rows" : "To measure accuracy; 0: none"}><input id="held_out" type="number" min="0" max="0.9" step="any" disabled=${Boolean(files.test)} value=${how.share} onInput=${(event) => set({ share: event.target.value })} /><//>
      <fieldset class="field"><legend>Lines</legend>
        ${isTable && html`<label><input type="checkbox" checked=${how.header} onChange=${() => read((old) => ({ header: !old.header }))} /> ${LABELS.header}</label>`}
        ${how.format === "svmlight" && html`<label><input type="checkbox" checked=${how.zeroBased} onChange=${() => set({ zeroBased: !how.zeroBased })} /> ${LABELS.zero_based}</label>`}
        <label><input type="checkbox" checked=${how.skipBad} onChange=${() => set({ skipBad: !how.skipBad })} /> ${LABELS.skip_bad}</label></fieldset>
    </div>${shown && html`<${Preview} shown=${shown} how=${how} />`}
    <p><${Button} type="submit" class="main" scope="submit" disabled=${sent !== null || head === undefined}>Upload<//>
    ${sent !== null && html`<progress max="1" value=${sent} aria-label="upload"></progress> ${Math.round(100 * sent)} %`}</p><${Trouble} error=${formError(error)} /></form>`;
}
