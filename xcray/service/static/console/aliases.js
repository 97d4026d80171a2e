// Aliases of a model: the versions that answer, and how often a shadow agrees with them.
import { html } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, segment } from "./api.js";
import { aliasesOf, traffic } from "./models.js";
import { Button, count, duration, Field, percent, Table, Trouble, useAction, useLoaded } from "./parts.js";

export function Aliases({ model, version, reload }) {
  const [failed, perform] = useAction();
  const move = async (method, alias, question, body) => {
    if (!confirm(question)) return;
    if (await perform(() => change(method, `/v1/models/${segment(model.name)}/aliases/${segment(alias)}`, body))) reload();
  };
  const set = (alias, body = { version }) => {
    const split = model.splits[alias] ? " Its traffic split or shadow ends." : "";
    const old = model.aliases[alias] === undefined ? "" : ` It is version ${model.aliases[alias]} now.`;
    const target = body.split ? body.split.map((each) => `${(100 * each.weight).toFixed(1)} % version ${each.version}`).join(" and ") : `version ${version}`;
    move("PUT", alias, `Set ${model.name}@${alias} to ${target}${body.shadow ? ` with shadow ${body.shadow.version}` : ""}?${old}${split}`, body);
  };
  const submit = (event) => {
    event.preventDefault();
    const fields = new FormData(event.target), weight = Number(fields.get("share")) / 100;
    const copied = Number(fields.get("copied")) / 100;
    const split = fields.get("other") && weight > 0 && [{ version, weight: 1 - weight }, { version: Number(fields.get("other")), weight }];
    set(fields.get("alias"), { ...(split ? { split } : { version }), ...(fields.get("shadow") && { shadow: { version: Number(fields.get("shadow")), share: copied } }) });
  };
  const others = (name) => html`<select id=${`alias-${name}`} name=${name}><option value="">none</option>${model.versions.filter((each) => each !== version).map((each) => html`<option value=${each}>${each}</option>`)}</select>`;
  const names = aliasesOf(model);
  return html`<h2>Aliases</h2><${Table} caption="Aliases" columns=${["alias", "answered by", "change"]} empty="There is no alias." rows=${names.map((alias) => [
      alias, traffic(model, alias),
      html`<${Button} scope="submit" disabled=${model.aliases[alias] === version && !model.splits[alias]} onClick=${() => set(alias)}>Set to version ${version}<//> <${Button} scope="submit" onClick=${() => move("DELETE", alias, `Remove the alias ${alias}? Requests to ${model.name}@${alias} are then refused.`)}>Remove<//>`])} />
    <form onSubmit=${submit} aria-label="New alias"><label>New alias for version ${version} <input name="alias" required pattern="[a-z0-9][a-z0-9._\\-]*" /></label> <${Button} type="submit" scope="submit">Set<//>
      ${model.versions.length > 1 && html`<details><summary>Split and shadow</summary><div class="fields">
        <${Field} id="alias-other" label="Another version answers, too">${others("other")}<//>
        <${Field} id="alias-share" label="Its share of the requests, in percent"><input id="alias-share" name="share" type="number" min="0" max="100" step="any" defaultValue="10" /><//>
        <${Field} id="alias-shadow" label="Shadow" help="It gets copies of requests; its answers are only compared">${others("shadow")}<//>
        <${Field} id="alias-copied" label="Share of the requests that it gets, in percent"><input id="alias-copied" name="copied" type="number" min="0.1" max="100" step="any" defaultValue="100" /><//></div></details>`}</form><${Trouble} error=${failed} />
    ${names.filter((alias) => model.splits[alias]?.shadow).map((alias) => html`<${Agreement} key=${alias} model=${model.name} alias=${alias} />`)}`;
}

// The statistics of the shadow of an alias and of earlier ones, over all processes of the service.
function Agreement({ model, alias }) {
  const [of, error] = useLoaded(() => get(`/v1/models/${segment(model)}/aliases/${segment(alias)}/shadow`), [model, alias], 5);
  if (!of) return html`<${Trouble} error=${error} />`;
  const seconds = (ms) => (ms === null ? "" : duration(ms / 1000));
  return html`<h3>Agreement of the shadow of ${alias}</h3><${Table} caption=${`Agreement of the shadow of ${alias}`} columns=${["answered by#", "shadow#", "rows#", "same best label#", "common labels#", "time of the answer#", "time of the shadow#", "failed#", "dropped#"]}
    empty="No request was copied yet." rows=${of.pairs.map((pair) => [`version ${pair.answered}`, `version ${pair.shadow}`, count(pair.rows), percent(pair.top1_agreement), percent(pair.overlap), seconds(pair.answer_ms), seconds(pair.shadow_ms), count(pair.failed), count(pair.dropped)])} />`;
}
