// Which worker executed which batch when, and the events of a job.
import { html, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { get, segment } from "./api.js";
import { Picture } from "./pictures.js";
import { Button, count, Table, Time, Trouble, useLoaded } from "./parts.js";

// running: the timeline is read again every few seconds.
export function Timeline({ id, running }) {
  const [of, error] = useLoaded(() => get(`/v1/jobs/${segment(id)}/timeline?limit=1`), [id, running], running ? 5 : 0);
  if (!of) return error && error.status !== 404 ? html`<${Trouble} error=${error} />` : null;
  return html`<h2>Workers</h2>${of.attempts.length > 1 && html`<p>${of.attempts.length} attempts, divided by lines.</p>`}
    <${Picture} path=${`/v1/jobs/${segment(id)}/pictures/timeline`} turn=${of.batches_total} />
    <details><summary>Workers and batches</summary><${Table} caption="Workers" columns=${["worker", "node", "busy#", "batches#", "labels#", "duplicate#", "lost#", "stopped#"]} rows=${of.workers.slice(0, 500).map((each) => [
      each.worker, each.node, `${(100 * each.share).toFixed(0)} %`, ...["batches", "n_labels", "duplicate", "lost", "stopped"].map((name) => count(each[name]))])} /></details>`;
}

// events: [[kind, data]] in order; the page shows the newest.
export function Events({ events }) {
  const [all, setAll] = useState(false);
  const shown = [...events].reverse().slice(0, all ? undefined : 10);
  const text = (kind, { time, ...more }) => Object.entries(more).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name === kind ? "" : `${name}: `}${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  return html`<h2>Events</h2><${Table} caption="Events" columns=${["time", "event", "details"]} empty="No event yet." rows=${shown.map(([kind, data]) => [html`<${Time} at=${data.time} />`, kind, text(kind, data)])} />
    ${events.length > shown.length && html`<${Button} onClick=${() => setAll(true)}>All ${count(events.length)} events<//>`}`;
}
