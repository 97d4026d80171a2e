// The console: navigation, sign-in, and the page that the fragment of the address names.
import { html, render, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { forgetKey, savedKey, saveKey } from "../session.js";
import { can, get, me } from "./api.js";
import { Admin } from "./admin.js";
import { Ask } from "./ask.js";
import { Compare } from "./compare.js";
import { Dataset, Datasets } from "./datasets.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { Model } from "./model.js";
import { Models } from "./models.js";
import { Overview } from "./overview.js";
import { focusMain, Refused, Trouble } from "./parts.js";
import { Train } from "./train.js";

// Pages: name, component, component of one item, scope without which the page shows nothing.
const PAGES = {
  "": { name: "Overview", Page: Overview },
  datasets: { name: "Data sets", Page: Datasets, Item: Dataset, scope: "read" },
  train: { name: "Train", Page: Train, scope: "read" },
  jobs: { name: "Jobs", Page: Jobs, Item: Job, scope: "read" },
  models: { name: "Models", Page: Models, Item: Model },
  ask: { name: "Ask", Page: Ask },
  admin: { name: "Admin", Page: Admin, scope: "admin" },
};
const UNLISTED = { compare: { name: "Compare", Page: Compare, scope: "read" } };

// "#/jobs/ID?a=b" -> page "jobs", id "ID", query {a: "b"}
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = path.split("/");
  return { page, id: id && decodeURIComponent(id), query: Object.fromEntries(new URLSearchParams(query || "")) };
}

// A page is made again for another item or question, not for another tab or version.
const keyOf = ({ page, id, query: { tab, version, ...question } }) => JSON.stringify([page, id, question]);

const Icon = () => html`<img src="static/icon.svg" alt="" />`;

function SignIn({ reason, onKey }) {
  useLayoutEffect(() => document.getElementById("key").focus(), []);
  const submit = (event) => {
    event.preventDefault();
    onKey(new FormData(event.target).get("key"));
  };
  return html`<main class="sign-in">
    <h1 class="name"><${Icon} />xcray</h1>
    <p>Exact classification into many labels.</p>
    <h2>Sign in</h2>
    ${reason && html`<p role="alert" class="problem">${reason}</p>`}
    <form onSubmit=${submit}>
      <div class="field"><label for="key">Key (xck_...)</label>
        <input id="key" name="key" type="password" required autocomplete="off" />
        <small>An operator creates one with <code>xcray keys create</code>. It is kept in this tab only.</small></div>
      <button class="main">Sign in</button>
    </form></main>`;
}

// A page; an answer that it can't draw leaves the navigation and a message, not an empty window.
function Content({ at }) {
  const [error] = useErrorBoundary();
  if (error) return html`<h1>This page cannot be shown</h1><p role="alert">${error.message}. Reload it; if that does not help, the service answers in a form that this console does not know.</p>`;
  const page = PAGES[at.page] ?? UNLISTED[at.page];
  if (!page) return html`<h1>There is no such page</h1><p><a href="#/">Overview</a></p>`;
  if (page.scope && !can(page.scope)) return html`<h1>${page.name}</h1><${Refused} scope=${page.scope} />`;
  return html`<${(at.id && page.Item) || page.Page} id=${at.id} query=${at.query} />`;
}

function Header({ current, onSignOut }) {
  return html`<header><a class="name" href="#/"><${Icon} />xcray</a>
    <nav aria-label="Pages">${Object.entries(PAGES).map(([page, { name }]) => html`
      <a href=${`#/${page}`} aria-current=${page === current ? "page" : undefined}>${name}</a>`)}</nav>
    <span class="last">${me.tenant !== "default" && html`<span title="tenant">${me.tenant}</span> `}<a href="docs">API</a>
      ${savedKey() && html` <button type="button" onClick=${onSignOut}>Sign out</button>`}</span></header>`;
}

function App() {
  const [at, setAt] = useState(place());
  const [reason, setReason] = useState(null);  // why a key is needed
  const [turn, setTurn] = useState(0);
  const [isReady, setReady] = useState(false);
  const [error, setError] = useState(null);  // why the scopes of the key are not known
  // Layout effects run when the page is drawn: later ones would miss a link or take the focus from a field.
  useLayoutEffect(() => {
    const moved = () => setAt(place());
    const refused = (event) => { forgetKey(); setReason(event.detail); };
    addEventListener("hashchange", moved);
    addEventListener("sign-in", refused);
    return () => { removeEventListener("hashchange", moved); removeEventListener("sign-in", refused); };
  }, []);
  useEffect(() => {
    let isOurs = true;  // false: of an earlier key
    const ours = (action) => (value) => isOurs && action(value);
    setReady(false);
    setError(null);
    get("/v1/me").then(ours((found) => Object.assign(me, found))).catch(ours(setError)).finally(ours(() => setReady(true)));
    return () => { isOurs = false; };
  }, [turn]);
  const isFirst = useRef(true);  // the browser places the first focus
  useLayoutEffect(() => {
    if (!isFirst.current) focusMain();
    isFirst.current = false;
  }, [keyOf(at), turn]);
  useEffect(() => { document.title = `xcray: ${(PAGES[at.page] ?? UNLISTED[at.page])?.name ?? "unknown page"}`; }, [at.page]);
  const signIn = (key) => {
    saveKey(key);
    setReason(null);
    setReady(false);
    setTurn(turn + 1);
  };
  const signOut = () => { forgetKey(); setReason("Signed out."); };
  if (reason !== null) return html`<${SignIn} reason=${reason} onKey=${signIn} />`;
  const skip = (event) => { event.preventDefault(); focusMain(); };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <${Header} current=${at.page} onSignOut=${signOut} />
    <main id="main" tabindex="-1">${isReady && (error ? html`<${Trouble} error=${error} />` : html`<${Content} key=${keyOf(at)} at=${at} />`)}</main>`;
}

render(html`<${App} />`, document.body);
