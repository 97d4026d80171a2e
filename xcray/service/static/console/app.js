// The console: navigation, sign-in, and the page that the fragment of the address names.
import { html, render, useEffect, useErrorBoundary, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { forgetKey, savedKey, saveKey } from "../session.js";
import { missingScopes } from "./api.js";
import { Admin } from "./admin.js";
import { Ask, judged } from "./ask.js";
import { Dataset, Datasets } from "./datasets.js";
import { Job, Jobs } from "./jobs.js";
import { Model, Models } from "./models.js";
import { Overview } from "./overview.js";
import { Train } from "./train.js";

const LINKS = { "": "Overview", datasets: "Data sets", train: "Train", jobs: "Jobs", models: "Models", ask: "Ask", admin: "Admin" };
const PAGES = { "": Overview, datasets: Datasets, train: Train, jobs: Jobs, models: Models, ask: Ask, admin: Admin };
const DETAILS = { datasets: Dataset, jobs: Job, models: Model };

// "#/jobs/ID?a=b" -> page "jobs", id "ID", query {a: "b"}
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, id] = path.split("/");
  return { page, id: id && decodeURIComponent(id), query: Object.fromEntries(new URLSearchParams(query || "")) };
}

function SignIn({ reason, onKey }) {
  useEffect(() => document.getElementById("key").focus(), []);
  const submit = (event) => {
    event.preventDefault();
    onKey(new FormData(event.target).get("key"));
  };
  return html`<main><h1>Sign in</h1><p role="alert">${reason}</p>
    <form onSubmit=${submit}><div class="field"><label for="key">Key (xck_...)</label>
      <input id="key" name="key" type="password" required autocomplete="off" /><small>It is kept in this tab only and sent as a header.</small></div>
      <button class="main">Sign in</button></form></main>`;
}

// A page; an answer that it can't draw leaves the navigation and a message, not an empty window.
function Content({ Page, id, query }) {
  const [error] = useErrorBoundary();
  if (error) return html`<h1>This page cannot be shown</h1><p role="alert">${error.message}. Reload it; if that does not help, the service answers in a form that this console does not know.</p>`;
  return Page ? html`<${Page} id=${id} query=${query} />` : html`<h1>There is no such page</h1>`;
}

function App() {
  const [at, setAt] = useState(place());
  const [reason, setReason] = useState(null);
  const [, setScopes] = useState(0);
  useEffect(() => {
    const moved = () => { setAt(place()); document.querySelector("main").focus(); };
    const refused = (event) => { forgetKey(); setReason(event.detail); };
    const scopes = () => setScopes(missingScopes.size);
    addEventListener("hashchange", moved);
    addEventListener("sign-in", refused);
    addEventListener("scopes", scopes);
    return () => { removeEventListener("hashchange", moved); removeEventListener("sign-in", refused); removeEventListener("scopes", scopes); };
  }, []);
  useEffect(() => { document.title = `xcray: ${LINKS[at.page] || "unknown page"}`; }, [at.page]);
  const signIn = (key) => {
    saveKey(key);
    missingScopes.clear();
    setReason(null);
    setTimeout(() => document.querySelector("main").focus());
  };
  const signOut = () => { forgetKey(); missingScopes.clear(); judged.length = 0; setReason("Signed out."); };
  if (reason !== null) return html`<${SignIn} reason=${reason} onKey=${signIn} />`;
  const Page = (at.id && DETAILS[at.page]) || PAGES[at.page];
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to the content</a>
    <header><strong>xcray</strong>
      <nav aria-label="Pages">${Object.entries(LINKS).map(([page, name]) => html`<a href=${`#/${page}`} aria-current=${page === at.page ? "page" : undefined}>${name}</a>`)}</nav>
      <span class="last"><a href="docs">API</a>${" "}${savedKey() && html`<button type="button" onClick=${signOut}>Sign out</button>`}</span></header>
    <main id="main" tabindex="-1"><${Content} key=${`${at.page}/${at.id}/${JSON.stringify(at.query)}`} Page=${Page} id=${at.id} query=${at.query} /></main>`;
}

render(html`<${App} />`, document.body);
