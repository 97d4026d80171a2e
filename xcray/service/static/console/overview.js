// Readiness with reasons, queue, running jobs, models, requests per second and p99, disk.
import { html, useRef } from "../vendor/htm-3.1.1/standalone.module.js";
import { can, get, getText, segment } from "./api.js";
import { DemoData } from "./datasets.js";
import { Progress } from "./jobs.js";
import { bytes, count, duration, Details, percent, phaseOf, Status, Table, Time, Trouble, useLoaded } from "./parts.js";

const LATENCY = "xcray_predict_duration_seconds_bucket";

// Prometheus text -> [[name with labels, value]]
const samples = (text) => text.split("\n").filter((line) => line && line[0] !== "#").map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]);
const total = (found, prefix) => found.filter(([name]) => name.startsWith(prefix)).reduce((sum, [, value]) => sum + value, 0);

// The upper limit of the bucket that holds the 99th percentile.
function p99(found) {
  const buckets = found.filter(([name]) => name.startsWith(LATENCY)).map(([name, n]) => [name.match(/le="([^"]+)"/)[1], n]);
  const all = Math.max(0, ...buckets.map(([, n]) => n));
  if (!all) return "no predictions yet";
  const [limit] = buckets.find(([, n]) => n >= 0.99 * all);
  return limit === "+Inf" ? "above 30 s" : `at most ${duration(Number(limit))}`;
}

export function Overview() {
  const before = useRef(null);
  const [ready, readyError] = useLoaded(() => get("/readyz"), [], 3);
  const [jobs, jobsError] = useLoaded(async () => can("read") && ({
    running: await get("/v1/jobs?status=RUNNING&limit=100"), waiting: await get("/v1/jobs?status=PENDING&limit=100"),
  }), [], 3);
  const [models, modelsError] = useLoaded(async () => (can("read") || can("predict") ? { loaded: (await get("/v1/models?loaded=true&limit=1")).total, newest: await get("/v1/models?limit=5&sort=created") } : null), [], 10);
  const [metrics, metricsError] = useLoaded(async () => {
    if (!can("metrics")) return null;
    const found = samples(await getText("/metrics")), now = performance.now() / 1000;
    const requests = total(found, "xcray_http_requests_total");
    const old = before.current;
    before.current = { requests, now };
    const rate = old && requests >= old.requests ? `${((requests - old.requests) / (now - old.now)).toFixed(1)} per second` : "measuring";
    return { rate, p99: p99(found), free: total(found, "xcray_disk_free_bytes"), size: total(found, "xcray_disk_size_bytes") };
  }, [], 5);
  const number = (page) => page && `${count(page.jobs.length)}${page.next_page_token ? " or more" : ""}`;
  return html`<h1>Overview</h1>
    ${[readyError, jobsError, modelsError].map((error) => html`<${Trouble} error=${error} />`)}
    ${ready && html`<${Details} of=${[
      ["Service", ready.ready ? "ready" : `not ready: ${ready.reasons.join(", ") || "sign in for the reasons"}`],
      ["Degraded", ready.degraded.join(", ")],
      ["Waiting jobs", number(jobs?.waiting)], ["Running jobs", number(jobs?.running)],
      ["Models", models && `${count(models.newest.total)}, ${count(models.loaded)} in memory`],
      ["Requests", metrics?.rate], ["p99 of predictions", metrics?.p99],
      ["Disk", metrics && `${bytes(metrics.free)} free of ${bytes(metrics.size)}`],
    ]} />`}
    ${metricsError && html`<p class="note">Requests, p99 and disk: ${metricsError.message}.</p>`}
    ${models?.newest.total === 0 && html`<h2>First steps</h2><ol><li><a href="#/datasets">Upload a file</a> of texts with labels, or use demo data.</li><li><a href="#/train">Train</a> a model on it.</li><li><a href="#/ask">Ask</a> the model.</li></ol><${DemoData} />`}
    ${models?.newest.total > 0 && html`<h2>Newest models</h2><${Table} caption="Newest models" columns=${["name", "P@1#", "labels#", "solver", "created", "ask"]} rows=${models.newest.models.map(({ name, latest }) => [
      html`<a href=${`#/models/${segment(name)}`}>${name}</a>`, percent(latest?.measures["P@1"]), count(latest?.n_labels), latest?.solver, html`<${Time} at=${latest?.created} />`, html`<a href=${`#/ask?model=${segment(name)}`}>Ask</a>`])} />`}
    ${jobs && html`<h2>Running jobs</h2><${Table} caption="Running jobs" columns=${["name", "status", "progress"]} empty="No job is running." rows=${jobs.running.jobs.map((job) => [
      html`<a href=${`#/jobs/${job.id}`}>${job.name}</a>`, html`<${Status} value=${job.status} /> ${phaseOf(job)}`, html`<${Progress} job=${job} />`])} />`}`;
}
