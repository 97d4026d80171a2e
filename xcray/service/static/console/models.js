// Models: versions, card, measures, aliases, labels with search.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, segment } from "./api.js";
import { Button, count, Details, Field, Pager, Status, Table, Trouble, useLoaded } from "./parts.js";
import { Aliases } from "./aliases.js";
import { Version, Versions } from "./versions.js";

export function Models() {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState([]);
  const query = new URLSearchParams({ limit: 50, ...(search && { contains: search }), ...(page.length && { page_token: page[page.length - 1] }) });
  const [list, error] = useLoaded(() => get(`/v1/models?${query}`), [String(query)], 10);
  const submit = (event) => { event.preventDefault(); setPage([]); setSearch(new FormData(event.target).get("search")); };
  return html`<h1>Models</h1><form role="search" onSubmit=${submit}><label>Part of the name <input type="search" name="search" /></label> <button>Search</button></form>
    <${Trouble} error=${error} />${list && html`<${Table} caption="Models" columns=${["name", "versions#", "latest#", "solver", "labels#", "features#"]} empty=${search ? "No model matches." : "There is no model yet: train one."}
      rows=${list.models.map(({ name, versions, latest }) => [html`<a href=${`#/models/${name}`}>${name}</a>`, count(versions.length), ...(latest ? [latest.version, latest.solver, count(latest.n_labels), count(latest.n_features)] : ["", "cannot be read", "", ""])])} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} names=${["Previous", "Next"]} />${list.total > 50 && html`<p class="note">${count(list.total)} models.</p>`}`}`;
}

export function Model({ id, query }) {
  const [failed, setFailed] = useState(null);
  const [model, error, reload] = useLoaded(() => get(`/v1/models/${segment(id)}`), [id]);
  if (!model) return html`<h1>Model</h1><${Trouble} error=${error} />`;
  const version = Number(query.version || model.versions[model.versions.length - 1]);
  const remove = async (number) => {
    if (!confirm(`Delete version ${number} of ${model.name} and its files? Its number is not used again.`)) return;
    setFailed(null);
    try {
      await change("DELETE", `/v1/models/${segment(id)}/versions/${number}`);
      if (model.versions.length === 1 || number === version) location.hash = model.versions.length === 1 ? "#/models" : `#/models/${id}`;
      if (model.versions.length > 1) reload();
    } catch (problem) {
      setFailed(problem);
    }
  };
  return html`<h1>Model ${model.name}</h1><${Trouble} error=${error} />
    <h2>Versions</h2><${Table} caption="Versions" columns=${["version#", "state", "reason", "change"]} rows=${[...model.states].reverse().map((each) => [
      html`<a href=${`#/models/${id}?version=${each.version}`} aria-current=${each.version === version ? "true" : undefined}>${each.version}</a>`, html`<${Status} value=${each.state} />`, each.reason || "",
      html`<${Button} scope="submit" label=${`Delete version ${each.version}`} onClick=${() => remove(each.version)}>Delete<//>`])} /><${Trouble} error=${failed} />
    <${Aliases} model=${model} version=${version} reload=${reload} /><${Versions} name=${id} numbers=${model.versions} version=${version} /><${Version} name=${id} version=${version} /><${Labels} reference=${`${id}:${version}`} />`;
}

// A model that is a chain of stages has no weights by label; the service says so and this shows it.
function Labels({ reference }) {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState([]);
  const [label, setLabel] = useState(null);
  const token = page[page.length - 1];
  const [list, error] = useLoaded(() => get(`/v1/models/${segment(reference)}/labels?limit=50&contains=${segment(search)}${token ? `&page_token=${segment(token)}` : ""}`), [reference, search, token]);
  const submit = (event) => { event.preventDefault(); setPage([]); setSearch(new FormData(event.target).get("search")); };
  if (error && !list) return html`<h2>Labels</h2><${Trouble} error=${error} />`;
  return html`<h2>Labels</h2><form role="search" onSubmit=${submit}><label>Part of the name <input type="search" name="search" /></label> <button>Search</button></form>
    <${Trouble} error=${error} />${list && html`<${Table} caption="Labels" columns=${["label", "training rows#", "gap#", "weights#"]} empty="No label matches." rows=${list.labels.map((each) => [
      html`<button type="button" aria-expanded=${each.label === label} onClick=${() => setLabel(each.label)}>${each.label}</button>`, count(each.positives), each.gap === null ? "" : each.gap.toExponential(1), count(each.weights)])} />
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
