// Aliases of a model: the versions that answer.
import { html } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, segment } from "./api.js";
import { aliasesOf, traffic } from "./models.js";
import { Button, Field, Table, Trouble, useAction } from "./parts.js";

export function Aliases({ model, version, reload }) {
  const [failed, perform] = useAction();
  const move = async (method, alias, question, body) => {
    if (!confirm(question)) return;
    if (await perform(() => change(method, `/v1/models/${segment(model.name)}/aliases/${segment(alias)}`, body))) reload();
  };
  const set = (alias, body = { version }) => {
    const split = model.splits[alias] ? " Its traffic split ends." : "";
    const old = model.aliases[alias] === undefined ? "" : ` It is version ${model.aliases[alias]} now.`;
    const target = body.split ? body.split.map((each) => `${(100 * each.weight).toFixed(1)} % version ${each.version}`).join(" and ") : `version ${version}`;
    move("PUT", alias, `Set ${model.name}@${alias} to ${target}?${old}${split}`, body);
  };
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target), weight = Number(fields.get("share")) / 100;
    const split = fields.get("other") && weight > 0 && [{ version, weight: 1 - weight }, { version: Number(fields.get("other")), weight }];
    set(fields.get("alias"), split ? { split } : { version });
  };
  const others = html`<select id="alias-other" name="other"><option value="">none</option>${model.versions.filter((each) => each !== version).map((each) => html`<option value=${each}>${each}</option>`)}</select>`;
  const names = aliasesOf(model);
  return html`<h2>Aliases</h2><${Table} caption="Aliases" columns=${["alias", "answered by", "change"]} empty="There is no alias." rows=${names.map((alias) => [
      alias, traffic(model, alias),
      html`<${Button} scope="submit" disabled=${model.aliases[alias] === version && !model.splits[alias]} onClick=${() => set(alias)}>Set to version ${version}<//> <${Button} scope="submit" onClick=${() => move("DELETE", alias, `Remove the alias ${alias}? Requests to ${model.name}@${alias} are then refused.`)}>Remove<//>`])} />
    <form onSubmit=${submit} aria-label="New alias"><label>New alias for version ${version} <input name="alias" required pattern="[a-z0-9][a-z0-9._\\-]*" /></label> <${Button} type="submit" scope="submit">Set<//>
      ${model.versions.length > 1 && html`<details><summary>Split</summary><div class="fields">
        <${Field} id="alias-other" label="Another version answers, too">${others}<//>
        <${Field} id="alias-share" label="Its share of the requests, in percent"><input id="alias-share" name="share" type="number" min="0" max="100" step="any" defaultValue="10" /><//></div></details>`}</form><${Trouble} error=${failed} />`;
}
