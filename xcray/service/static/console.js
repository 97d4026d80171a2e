"use strict";
// All displayed values are untrusted input: set them as text, never as markup.

const at = (id) => document.getElementById(id);
const count = (n) => (n === undefined || n === null ? "" : n.toLocaleString("en"));

// The key is stored for this tab only and sent only in a header.
function key(asked) {
  if (asked && !key.open) {
    key.open = true;
    const given = window.prompt("This service requires a key (xck_...):");
    if (given) sessionStorage.setItem("key", given.trim());
    key.open = given === null;  // no further prompt after a cancel
  }
  const known = sessionStorage.getItem("key");
  return known ? { Authorization: `Bearer ${known}` } : {};
}

async function ask(path, body) {
  const how = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const type = body ? { "Content-Type": "application/json" } : {};
  let answer = await fetch(path, { ...how, headers: { ...type, ...key(false) } });
  if (answer.status === 401) answer = await fetch(path, { ...how, headers: { ...type, ...key(true) } });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.detail || answer.statusText);
  return value;
}

function row(...cells) {
  const tr = document.createElement("tr");
  for (const cell of cells) {
    const td = tr.insertCell();
    if (cell instanceof Node) td.append(cell);
    else td.textContent = cell;
    if (typeof cell === "string" && /^-?[\d,.]+$/.test(cell)) td.className = "number";
  }
  return tr;
}

function words(contributions) {
  const line = document.createElement("span");
  const largest = Math.max(...contributions.map((part) => Math.abs(part.contribution)), 1e-12);
  for (const part of contributions) {
    const word = document.createElement("span");
    word.className = part.contribution >= 0 ? "for" : "against";
    word.style.opacity = 0.45 + 0.55 * Math.abs(part.contribution) / largest;
    word.textContent = `${part.feature} ${part.contribution >= 0 ? "+" : "−"}${Math.abs(part.contribution).toFixed(2)}`;
    line.append(word, " ");
  }
  if (!contributions.length) line.textContent = "none: bias only";
  return line;
}

async function answer(event) {
  event.preventDefault();
  const model = encodeURIComponent(at("model").value);
  const instance = { text: at("text").value };
  at("said").textContent = "";
  try {
    const found = await ask(`/v1/models/${model}:predict`, { instances: [instance], top_k: Number(at("k").value) });
    const labels = found.predictions[0].labels;
    const pinned = `${model}:${found.model.version}`;
    const reasons = await Promise.all(labels.map((label) => ask(`/v1/models/${pinned}:explain`, { instance, label, top: 6 })));
    at("answer").hidden = false;
    at("answer").tBodies[0].replaceChildren(...reasons.map((why) => row(why.label, why.score.toFixed(3), words(why.contributions))));
    at("said").textContent = `version ${found.model.version}, ${found.model.sha256.slice(0, 12)}`;
  } catch (error) {
    at("answer").hidden = true;
    at("said").textContent = error.message;
  }
}

function status(value) {
  const mark = document.createElement("span");
  mark.className = `status ${value.toLowerCase()}`;
  mark.textContent = value;
  return mark;
}

function progress(job) {
  const bar = document.createElement("progress");
  const { done, total, eta, note, figures } = job.progress;
  if (!total) return job.message || "";
  bar.max = total;
  bar.value = done;
  bar.title = `${count(done)} of ${count(total)}` + (eta === null || eta === undefined ? "" : `, ${Math.round(eta)} s left`);
  if (!figures || job.status !== "RUNNING") return bar;
  const cell = document.createElement("span");  // training in epochs: show the objective
  cell.append(bar, ` ${note}`);
  return cell;
}

function measures(found) {
  return Object.entries(found).slice(0, 3).map(([name, value]) => `${name} ${(100 * value).toFixed(1)} %`).join("  ");
}

async function refresh() {
  try {
    const [jobs, models, datasets] = await Promise.all([ask("/v1/jobs?limit=20"), ask("/v1/models"), ask("/v1/datasets?limit=20")]);
    at("jobs").replaceChildren(...jobs.jobs.map((job) => row(job.name, status(job.status), job.phase, progress(job), job.created.slice(0, 19), job.id)));
    at("models").replaceChildren(...models.models.map(({ name, latest, aliases }) =>
      latest === null ? row(name, "corrupt") : row(name, count(latest.version), Object.entries(aliases).map(([alias, n]) => `${alias} ${n}`).join(", "),
        count(latest.n_labels), count(latest.n_features), measures(latest.measures))));
    at("datasets").replaceChildren(...datasets.datasets.map((set) =>
      row(set.name, status(set.status), count((set.stats.splits || {}).train?.n_rows), count(set.stats.n_labels), set.id)));
    const names = models.models.map((model) => model.name);
    const shown = [...at("model").options].map((option) => option.value);
    if (names.join() !== shown.join()) at("model").replaceChildren(...names.map((name) => new Option(name)));
    at("health").textContent = "";
  } catch (error) {
    at("health").textContent = `not available: ${error.message}`;
  }
}

at("ask").addEventListener("submit", answer);
refresh();
setInterval(refresh, 3000);
