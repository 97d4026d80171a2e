// Ask a model: labels with scores and probabilities, and the words that count for a label.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, newKey, segment } from "./api.js";
import { Batch } from "./batch.js";
import { aliasesOf } from "./models.js";
import { Button, count, Field, percent, Table, Trouble, useAction, useLoaded } from "./parts.js";

// Between the fields of a document, which is one text to the service.
const SEPARATOR = "\u001f";

// Text -> [[piece, contribution]]: a word counts for the features that it is, or is a part of. The
// own features of a field are like title:word.
export function highlight(text, contributions) {
  const pieces = text.replaceAll(SEPARATOR, "\n").split(/([\p{L}\p{N}_]+)/u).map((piece) => [piece, 0]);
  const words = pieces.map(([piece], at) => [piece.toLowerCase(), at]).filter((_, at) => at % 2 === 1);
  for (const { feature, contribution } of contributions) {
    const wanted = feature.toLowerCase().replace(/^[^:]*:/, "").split(" ");
    for (let i = 0; i + wanted.length <= words.length; i += 1) {
      if (wanted.every((word, j) => words[i + j][0] === word)) for (let j = 0; j < wanted.length; j += 1) pieces[words[i + j][1]][1] += contribution / wanted.length;
    }
  }
  return pieces;
}

function Words({ text, why }) {
  const pieces = highlight(text, why.contributions);
  const largest = Math.max(1e-12, ...pieces.map(([, value]) => Math.abs(value)));
  return html`<p class="answer" aria-label="text with the words that count">${pieces.map(([piece, value]) => (value === 0 ? piece
    : html`<mark class=${value > 0 ? "for" : "against"} style=${{ "--strength": `${15 + 45 * Math.abs(value) / largest}%` }} title=${`${value > 0 ? "+" : "−"}${Math.abs(value).toFixed(3)}`}>${piece}</mark>`))}</p>
    <p>Rank ${count(why.rank)} of all labels${why.rank > 1 ? `, ${why.gap_to_top.toFixed(3)} below the best score` : ""}${why.gap_to_kth > 0 ? ` and ${why.gap_to_kth.toFixed(3)} below the fifth` : ""}.</p><p class="note">Score ${why.score.toFixed(3)} = bias ${why.bias.toFixed(3)} + the words${why.n_rest ? html` + ${why.rest.toFixed(3)} of ${why.n_rest} more words` : ""}${why.groups.length ? " + the groups of similar labels" : ""}; underlined words count against the label.</p>
    <${Table} caption="Contributions" columns=${["feature", "value in the text#", "weight#", "contribution#"]} empty="No word of the text counts for this label." rows=${why.contributions.map((each) => [each.feature, each.x.toFixed(3), each.weight.toFixed(3), each.contribution.toFixed(3)])} />
    ${why.groups.length > 0 && html`<${Table} caption="Groups of similar labels" columns=${["first labels", "labels#", "words", "contribution#"]} rows=${why.groups.map((group) => [group.labels.join(", "), count(group.n_labels), group.contributions.slice(0, 3).map((each) => each.feature).join(", "), group.contribution.toFixed(3)])} />`}`;
}

// Send which labels are right. The id makes a repeated request the same feedback.
function Judge({ text, labels, model }) {
  const [failed, perform] = useAction();
  const [id] = useState(() => `fb_${newKey()}`);
  const [stored, setStored] = useState(null);
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target), right = fields.getAll("right");
    const body = { id, instance: { text }, right: [...new Set([...right, ...lines(fields.get("missing"))])], wrong: labels.filter((name) => !right.includes(name)) };
    perform(async () => setStored(await change("POST", `/v1/models/${segment(model)}/feedback`, body)));
  };
  return html`<details><summary>Accept or reject</summary><form onSubmit=${submit} aria-label="Accept or reject"><fieldset disabled=${stored !== null}><legend>Right labels; the others are wrong</legend>${labels.map((name) => html`<label><input type="checkbox" name="right" value=${name} /> ${name}</label>`)}
    <${Field} id="missing" label="Right labels that are missing" help="One per line"><textarea id="missing" name="missing" rows="2"></textarea><//>
    <${Button} type="submit" scope="predict">Send as feedback<//></fieldset></form><${Trouble} error=${failed} />
    ${stored && html`<p role="status">Stored for the next version${stored.new_labels.length > 0 ? `; new labels: ${stored.new_labels.join(", ")}` : ""}. <a href=${`#/models/${segment(stored.model)}?tab=feedback`}>All feedback</a></p>`}</details>`;
}

const MAX_MODELS = 100;
const thresholdsOf = (value) => Object.fromEntries(["min_score", "min_probability"].filter(value).map((name) => [name, Number(value(name))]));
const lines = (text) => (text || "").split("\n").map((line) => line.trim()).filter(Boolean);

// Where a ranked label comes from: its place in the search, and the word of the text where its name begins.
const originOf = ({ rank, first_word: word }) => [rank && `search ${rank}`, word !== null && `name at word ${word + 1}`].filter(Boolean).join(", ") || "search";

// The latest question that has a reply, which names the version: the link and the words are of that version.
function Answer({ asked }) {
  const [chosen, setChosen] = useState({});  // the label whose words are shown, of one reply
  const [found, error] = useLoaded(async () => {
    const body = { instances: [{ text: asked.text }], top_k: asked.k, certificate: true, ...(asked.allow.length && { allow: asked.allow }), ...(asked.deny.length && { deny: asked.deny }), ...(asked.probabilities && { probabilities: true }), ...asked.thresholds };
    const begun = performance.now();
    const reply = await change("POST", `/v1/models/${segment(asked.model)}:predict`, body);
    return { question: asked, reply, ms: performance.now() - begun };
  }, [asked]);
  const setLabel = (label) => setChosen({ label, of: found });
  const question = found?.question, shown = chosen.of === found ? chosen.label : found?.reply.predictions[0].labels[0];
  const pinned = found && `${found.reply.model.name}:${found.reply.model.version}`;
  const [why, whyError] = useLoaded(async () => (shown === undefined ? null : change("POST", `/v1/models/${segment(pinned)}:explain`, { instance: { text: question.text }, label: shown, top: 50 })), [pinned, shown, question]);
  if (!found) return error ? html`<${Trouble} error=${error} />` : html`<p role="status">Asking.</p>`;
  const { labels, names, scores, origins, probabilities, certificate } = found.reply.predictions[0];
  const link = `#/ask?${new URLSearchParams({ model: pinned, text: question.text, k: question.k, ...(question.probabilities && { p: 1 }), ...question.thresholds, ...(question.allow.length && { allow: question.allow.join("\n") }), ...(question.deny.length && { deny: question.deny.join("\n") }) })}`;
  const whyNot = (event) => { event.preventDefault(); setLabel(new FormData(event.target).get("label").trim()); };
  const isAnswer = labels.includes(shown);
  return html`<${Trouble} error=${error} /><h2>Answer</h2><p role="status">Version ${found.reply.model.version} of ${found.reply.model.name}, ${found.ms.toFixed(0)} ms with the network. ${!certificate.exact ? "Not proven exact." : origins ? "A ranker ordered labels of an exact search and names in the text." : `Proven exact: no other ${question.allow.length || question.deny.length ? "allowed " : ""}label has a larger score.`} <a href=${link}>Link to this question</a></p>
    ${found.reply.warnings?.map((warning) => html`<div class="problem">${warning.message}</div>`)}
    <${Table} caption="Labels" columns=${["label", ...(names ? ["name"] : []), "score#", ...(probabilities ? ["probability#"] : []), ...(origins ? ["found"] : [])]} rows=${labels.map((name, i) => [
      html`<button type="button" aria-pressed=${name === shown} onMouseEnter=${() => setLabel(name)} onFocus=${() => setLabel(name)} onClick=${() => setLabel(name)}>${name}</button>`, ...(names ? [names[i]] : []), scores[i].toFixed(3), ...(probabilities ? [html`<span class="level" style=${{ "--share": percent(probabilities[i]).replace(" ", "") }}></span>${probabilities[i].toFixed(3)}`] : []), ...(origins ? [originOf(origins[i])] : [])])} empty="No label is allowed, or none reaches the least score or probability." />
    <${Judge} key=${`${pinned} ${question.text}`} text=${question.text} labels=${labels} model=${pinned} />
    <form onSubmit=${whyNot} aria-label="Why not"><label>Another label <input name="label" required maxlength="10000" /></label> <button>Why not?</button></form>
    ${shown !== undefined && html`<h2>${isAnswer ? "Why" : "Why not"} ${shown}</h2>`}<${Trouble} error=${whyError} />${why && why.label === shown && html`<${Words} text=${question.text} why=${why} />`}`;
}

// The version that a reference (name, name@alias, name:3) means.
async function versionOf(reference, models) {
  const [, name, mark, rest] = reference.match(/^([^:@]+)([:@]?)(.*)$/);
  const version = (number) => get(`/v1/models/${segment(name)}/versions/${number}`);
  if (mark === ":") return version(rest);
  const model = models.find((each) => each.name === name) ?? await get(`/v1/models/${segment(name)}`);
  return mark ? version(model.aliases[rest]) : model.latest;
}

// The names of the text fields of a version; one text for models without.
const textFields = (version) => (version?.reading.text_fields?.length > 1 ? version.reading.text_fields : ["Text"]);

export function Ask({ query }) {
  const [part, setPart] = useState("");
  const [page, error] = useLoaded(() => get(`/v1/models?limit=${MAX_MODELS}&sort=created&contains=${segment(part)}`), [part]);
  const [question, setQuestion] = useState(query.model && query.text ? { model: query.model, text: query.text, k: Number(query.k) || 5, probabilities: Boolean(query.p), allow: lines(query.allow), deny: lines(query.deny), thresholds: thresholdsOf((name) => query[name]) } : null);
  const [name, setName] = useState(query.model ?? null);
  const [wanted, setWanted] = useState(query.text ? Boolean(query.p) : true);  // probabilities, of models that have them
  const names = !page ? [] : page.models.filter((model) => model.latest).flatMap((model) => [model.name, ...aliasesOf(model).map((alias) => `${model.name}@${alias}`)]);
  if (page && query.model && !names.includes(query.model)) names.unshift(query.model);
  const chosen = names.includes(name) ? name : names[0];
  const [version] = useLoaded(async () => chosen && versionOf(chosen, page?.models ?? []), [chosen, page]);
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target);
    setQuestion({ model: fields.get("model"), text: fields.getAll("text").join(SEPARATOR), k: Number(fields.get("k")), probabilities: fields.has("probabilities"), allow: lines(fields.get("allow")), deny: lines(fields.get("deny")), thresholds: thresholdsOf((name) => fields.get(name)) });
  };
  if (!page) return html`<h1>Ask</h1><${Trouble} error=${error} />`;
  if (!names.length && !part) return html`<h1>Ask</h1><p>There is no model yet: <a href="#/train">train one</a>.</p>`;
  const isLong = part || page.next_page_token;  // a select of all models would be too long
  return html`<h1>Ask</h1><form onSubmit=${submit} aria-label="Ask">
      ${textFields(version).map((each, i, all) => html`<${Field} id=${`text${i || ""}`} label=${each}><textarea id=${`text${i || ""}`} name="text" rows=${i || all.length === 1 ? 4 : 1} maxlength="100000" required=${i === 0}>${(query.text ?? "").split(SEPARATOR)[i] ?? ""}</textarea><//>`)}
      <div class="fields">${isLong && html`<${Field} id="part" label="Part of the model's name" help=${`The first ${MAX_MODELS} of ${count(page.total)} models are listed`}><input id="part" type="search" value=${part} onChange=${(event) => setPart(event.target.value)} /><//>`}
      <${Field} id="ask-model" label="Model"><select id="ask-model" name="model" onChange=${(event) => setName(event.target.value)}>${names.map((each) => html`<option value=${each} selected=${each === chosen}>${each}</option>`)}</select><//>
      <${Field} id="k" label="Number of labels"><input id="k" name="k" type="number" min="1" max="100" required defaultValue=${query.k ?? 5} /><//>
      <p><label><input type="checkbox" name="probabilities" checked=${wanted && Boolean(version?.calibrated)} disabled=${!version?.calibrated} onChange=${(event) => setWanted(event.target.checked)} /> Probabilities${version && !version.calibrated ? " (this model has none)" : ""}</label></p></div>
      <details open=${Boolean(query.allow || query.deny || query.min_score || query.min_probability)}><summary>Filters</summary><div class="fields">
        <${Field} id="allow" label="Only these labels" help="One per line; set:NAME for the labels of a label set"><textarea id="allow" name="allow" rows="3">${query.allow ?? ""}</textarea><//>
        <${Field} id="deny" label="Never these labels" help="In the same form"><textarea id="deny" name="deny" rows="3">${query.deny ?? ""}</textarea><//>
        <${Field} id="min-score" label="Least score" help="Labels below it are left out"><input id="min-score" name="min_score" type="number" step="any" defaultValue=${query.min_score ?? ""} /><//>
        <${Field} id="min-probability" label="Least probability" help="Of models that have probabilities"><input id="min-probability" name="min_probability" type="number" min="0" max="1" step="any" defaultValue=${query.min_probability ?? ""} /><//></div></details>
      <${Button} type="submit" class="main" scope="predict">Ask<//></form>
    <${Batch} model=${chosen} calibrated=${version?.calibrated} />
    ${question && html`<${Answer} asked=${question} />`}`;
}
