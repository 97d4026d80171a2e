// Feedback on the answers of a model, and the data set for the version after it.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, download, get, newKey, segment } from "./api.js";
import { Button, Pager, Table, Time, Trouble, useAction, useLoaded } from "./parts.js";

// The text of an instance, or its first values.
const textOf = ({ text, fields, ...row }) => (text ?? JSON.stringify(fields ?? row)).slice(0, 200);

export function Feedback({ of }) {
  const path = `/v1/models/${segment(of.name)}/feedback`, reference = `${of.name}:${of.version}`;
  const [page, setPage] = useState([]);
  const [isBuilding, setBuilding] = useState(false);
  const [failed, perform] = useAction();
  const query = new URLSearchParams({ limit: 50, ...(page.length && { page_token: page[page.length - 1] }) });
  const [list, error, reload] = useLoaded(() => get(`${path}?${query}`), [path, String(query)]);
  const remove = async (id) => {
    if (confirm(`Delete feedback ${id} and its text? Data sets that have it keep the row.`) && await perform(() => change("DELETE", `${path}/${segment(id)}`))) reload();
  };
  const build = async () => {
    setBuilding(true);
    await perform(async () => {
      const body = { name: `${of.name.slice(0, 55)}-feedback`, format: "feedback", model: reference };
      let set = await change("POST", "/v1/datasets", body, { "Idempotency-Key": newKey() });
      while (set.status === "BUILDING") {
        await new Promise((resolve) => setTimeout(resolve, 500));
        set = await get(`/v1/datasets/${set.id}`);
      }
      if (set.status === "FAILED") throw new Error(set.stats.problem.message);
      location.hash = `#/models/${segment(of.name)}?${new URLSearchParams({ version: of.version, tab: "change", change: "rows", dataset: set.id })}`;
    });
    setBuilding(false);
  };
  return html`<h2>Feedback</h2><${Trouble} error=${error} />
    ${list?.feedback.length > 0 && html`<p><${Button} class="main" scope="submit" disabled=${isBuilding} onClick=${build}>Update version ${of.version}<//>
      ${" "}<${Button} scope="read" onClick=${() => perform(() => download(`${path}:export`, `${of.name}-feedback.jsonl`))}>Save as a file<//></p>
      <p class="note">A data set is made from that of version ${of.version} and the feedback that it does not have yet.</p>`}<${Trouble} error=${failed} />
    ${list && html`<${Table} caption="Feedback" columns=${["text", "right", "wrong", "version#", "sent", "change"]} empty="There is none: accept or reject labels below an answer." rows=${list.feedback.map((each) => [
      textOf(each.instance), each.right.join(", "), each.wrong.join(", "), each.version, html`<${Time} at=${each.created} />`,
      html`<${Button} scope="submit" label=${`Delete ${each.id}`} onClick=${() => remove(each.id)}>Delete<//>`])} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} />`}`;
}
