// Keys, tenants and the audit log, for keys with the scope admin.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { change, get, segment } from "./api.js";
import { Button, count, Field, NAME, Pager, Table, Time, Trouble, useAction, useLoaded } from "./parts.js";

const SCOPES = { read: "read data sets, jobs and models", predict: "ask models", submit: "change data sets, jobs and models", metrics: "metrics of the service only", admin: "keys, audit log, metrics, all tenants" };
const LIMITS = { max_running: "Running jobs", max_queued: "Waiting jobs", requests_per_minute: "Requests per minute", instances_per_minute: "Instances per minute", upload_bytes: "Bytes of waiting uploads" };
const DAY = 86400;
const isValid = (key) => !key.revoked && !(key.expires && new Date(key.expires) < new Date());

export function Admin() {
  const [keys, error, reload] = useLoaded(async () => (await get("/v1/keys")).keys, []);
  return html`<h1>Admin</h1><${Trouble} error=${error} />${keys && html`<${Keys} keys=${keys} reload=${reload} /><${Tenants} keys=${keys} />
    <${NewKey} isFirst=${keys.length === 0} reload=${reload} />${keys.length > 0 && html`<${Audit} />`}`}`;  // a late refusal of its request would remove the first secret
}

function Keys({ keys, reload }) {
  const [all, setAll] = useState(false);
  const [failed, perform] = useAction();
  const revoke = async (key) => {
    if (!confirm(`Revoke the key ${key.name} (${key.id}) of the tenant ${key.tenant}? Its requests are then refused, also those of this tab if it is yours.`)) return;
    if (await perform(() => change("DELETE", `/v1/keys/${segment(key.id)}`))) reload();
  };
  const shown = keys.filter((key) => all || isValid(key));
  return html`<h2>Keys</h2><p><label><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> Also revoked and expired keys</label></p>
    <${Trouble} error=${failed} /><${Table} caption="Keys" columns=${["name", "id", "tenant", "scopes", "created", "last used", "expires", "limits", "change"]} empty="There is no key: everyone on this machine has all scopes." rows=${shown.map((key) => [
      key.name, key.id, key.tenant, key.scopes.join(", "), html`<${Time} at=${key.created} />`, key.last_used ? html`<${Time} at=${key.last_used} />` : "never", key.expires ? html`<${Time} at=${key.expires} />` : "never",
      Object.entries(key.limits).map(([name, limit]) => `${LIMITS[name] ?? name}: ${count(limit)}`).join(", "),
      key.revoked ? html`revoked <${Time} at=${key.revoked} />` : html`<${Button} scope="admin" label=${`Revoke ${key.name}`} onClick=${() => revoke(key)}>Revoke<//>`])} />`;
}

// The service has no list of tenants: a tenant begins with its first key.
function Tenants({ keys }) {
  const names = [...new Set(keys.map((key) => key.tenant))].sort();
  return html`<h2>Tenants</h2><${Table} caption="Tenants" columns=${["tenant", "valid keys#", "all keys#", "last used"]} empty="Only the tenant default, without keys." rows=${names.map((name) => {
    const own = keys.filter((key) => key.tenant === name);
    return [name, count(own.filter(isValid).length), count(own.length), html`<${Time} at=${own.map((key) => key.last_used ?? "").sort().pop()} />`];
  })} />`;
}

// isFirst: the service admits everyone until this key. Its tab shows the secret before it has to sign in.
function NewKey({ isFirst, reload }) {
  const [made, setMade] = useState(null);
  const [failed, perform] = useAction();
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target, fields = new FormData(form);
    const limits = Object.fromEntries(Object.keys(LIMITS).filter((name) => fields.get(name) !== "").map((name) => [name, Number(fields.get(name))]));
    const body = { name: fields.get("name"), tenant: fields.get("tenant"), scopes: fields.getAll("scope"), limits, ...(fields.get("days") && { expires_seconds: DAY * Number(fields.get("days")) }) };
    setMade(null);
    await perform(async () => {
      setMade(await change("POST", "/v1/keys", body));
      form.reset();
      if (!isFirst) reload();
    });
  };
  return html`<h2>New key</h2><form onSubmit=${submit} aria-label="New key"><div class="fields">
      <${Field} id="key-name" label="Name"><input id="key-name" name="name" required maxlength="128" autocomplete="off" /><//>
      <${Field} id="key-tenant" label="Tenant" help="Its data sets, jobs and models are separate"><input id="key-tenant" name="tenant" required pattern=${NAME} defaultValue="default" /><//>
      <${Field} id="key-days" label="Valid for days" help="Empty: until it is revoked"><input id="key-days" name="days" type="number" min="0.01" step="any" /><//></div>
    <fieldset><legend>Scopes</legend>${Object.entries(SCOPES).map(([scope, help]) => html`<label><input type="checkbox" name="scope" value=${scope} defaultChecked=${scope === (isFirst ? "admin" : "predict")} /> ${scope}: ${help}</label>`)}</fieldset>
    <details><summary>Limits of this key</summary><div class="fields">${Object.entries(LIMITS).map(([name, label]) => html`<${Field} id=${`limit-${name}`} label=${label}><input id=${`limit-${name}`} name=${name} type="number" min="0" step="1" /><//>`)}</div></details>
    <p><${Button} type="submit" class="main" scope="admin">Create the key<//></p></form><${Trouble} error=${failed} />
    ${made && html`<div role="status"><p>The secret of the key ${made.name}. It is shown only now and not stored: copy it.${isFirst && " Every request needs a key now: sign in with this one."}</p><pre tabindex="0" aria-label="secret">${made.key}</pre><${Button} onClick=${() => { setMade(null); reload(); }}>${isFirst ? "Sign in" : "Hide it"}<//></div>`}`;
}

function Audit() {
  const [filter, setFilter] = useState({});
  const [page, setPage] = useState([]);
  const query = new URLSearchParams({ limit: 50, ...filter, ...(page.length && { page_token: page[page.length - 1] }) });
  const [list, error] = useLoaded(() => get(`/v1/audit?${query}`), [String(query)]);
  const submit = (event) => {
    event.preventDefault();
    setPage([]);
    setFilter(Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value)));
  };
  return html`<h2>Audit log</h2><form onSubmit=${submit} aria-label="Filter"><div class="fields">
      <${Field} id="audit-tenant" label="Tenant"><input id="audit-tenant" name="tenant" maxlength="64" /><//>
      <${Field} id="audit-action" label="Action" help="For example job.submit or key.revoke"><input id="audit-action" name="action" maxlength="64" /><//></div><button>Filter</button></form>
    <${Trouble} error=${error} />${list && html`<${Table} caption="Audit log" columns=${["time", "tenant", "key", "action", "subject", "details"]} empty="No entry matches." rows=${list.entries.map((entry) => [
      html`<${Time} at=${entry.time} />`, entry.tenant, entry.key_id ?? "none", entry.action, entry.subject, html`<${Detail} entry=${entry} />`])} />
    <${Pager} page=${page} setPage=${setPage} next=${list.next_page_token} />`}`;
}

// The details of an entry: one line, or folded.
function Detail({ entry }) {
  const text = Object.entries(entry.detail).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
  const request = entry.request_id ? ` request: ${entry.request_id}` : "";
  return text.length < 60 && !request ? text : html`<details><summary>${text.length < 60 ? text || "request" : `${text.slice(0, 60)}...`}</summary>${text}${request}</details>`;
}
