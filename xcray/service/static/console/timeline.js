// Which worker executed which batch when: one lane per worker, attempts one after the other.
import { html, useState } from "/static/vendor/htm-3.1.1/standalone.module.js";
import { get, segment } from "/static/console/api.js";
import { Button, count, duration, Table, Trouble, useLoaded, when } from "/static/console/parts.js";

const LANES = 32, ROW = 26;  // lanes drawn; pixels per lane
const OUTCOMES = { done: "done", duplicate: "duplicate: another worker was faster", lost: "lost with its worker", stopped: "stopped" };

// Bars in seconds on the common axis. Merged useless batches are drawn with their total length.
function bars({ attempts, workers, batches }) {
  const lanes = new Map(workers.slice(0, LANES).map(({ worker }, lane) => [worker, lane]));
  const shifts = new Map(attempts.map((each) => [each.attempt_of_run, each.begins - each.first]));
  return batches.filter(({ worker }) => lanes.has(worker)).map((each) => {
    const length = each.outcome === "done" ? each.ended - each.started : Math.min(each.seconds, each.ended - each.started);
    return { ...each, lane: lanes.get(each.worker), begins: shifts.get(each.attempt_of_run) + each.started, length };
  });
}

function Lanes({ of }) {
  const total = Math.max(of.makespan, 1e-9), lanes = of.workers.slice(0, LANES);
  const share = (seconds) => `${100 * seconds / total}%`;
  return html`<svg class="lanes" height=${ROW * lanes.length} role="img" aria-label=${`timeline: ${count(of.batches_total)} batches on ${count(of.workers_total)} workers in ${duration(of.makespan)}, ${(100 * of.busy_share).toFixed(0)} % busy`}>
    ${lanes.map((_, lane) => html`<rect class="lane" x="0" width="100%" y=${ROW * lane + 14} height=${ROW - 16} />`)}
    ${bars(of).map((bar) => html`<rect class=${bar.outcome} x=${share(bar.begins)} width=${share(Math.max(bar.length, total / 2000))} y=${ROW * bar.lane + 14} height=${ROW - 16}><title>${bar.worker}: ${count(bar.batches)} batches, ${count(bar.classes)} labels, ${duration(bar.length)}, ${OUTCOMES[bar.outcome]}</title></rect>`)}
    ${of.attempts.slice(1).map(({ begins }) => html`<line x1=${share(begins)} x2=${share(begins)} y1="0" y2="100%" />`)}
    ${lanes.map(({ worker, share: busy }, lane) => html`<text x="0" y=${ROW * lane + 11}>${worker}, ${(100 * busy).toFixed(0)} % busy</text>`)}</svg>
    <div class="axis" aria-hidden="true"><span>0 s</span><span>${duration(total / 2)}</span><span>${duration(total)}</span></div>`;
}

// running: the timeline is read again every few seconds.
export function Timeline({ id, running }) {
  const [of, error] = useLoaded(() => get(`/v1/jobs/${segment(id)}/timeline?limit=1500`), [id, running], running ? 5 : 0);
  if (!of) return error && error.status !== 404 ? html`<${Trouble} error=${error} />` : null;
  const outcomes = Object.keys(OUTCOMES).filter((name) => of.batches.some((each) => each.outcome === name));
  return html`<h2>Workers</h2><p>${count(of.batches_total)} batches on ${count(of.workers_total)} workers in ${duration(of.makespan)}; workers were busy for ${(100 * of.busy_share).toFixed(0)} % of it.${of.thinned ? " Adjacent batches are drawn as one." : ""}${of.workers_total > LANES ? ` The first ${LANES} workers are drawn.` : ""}${of.attempts.length > 1 ? ` ${of.attempts.length} attempts, divided by lines.` : ""}</p>
    ${outcomes.length > 1 && html`<p class="legend">${outcomes.map((name) => html`<span><i class=${name}></i>${OUTCOMES[name]}</span>`)}</p>`}<${Lanes} of=${of} />
    <details><summary>Workers and batches</summary><${Table} caption="Workers" columns=${["worker", "node", "busy#", "batches#", "labels#", "duplicate#", "lost#", "stopped#"]} rows=${of.workers.slice(0, 500).map((each) => [
      each.worker, each.node, `${(100 * each.share).toFixed(0)} %`, ...["batches", "classes", "duplicate", "lost", "stopped"].map((name) => count(each[name]))])} /></details>`;
}

// events: [[kind, data]] in order; the page shows the newest.
export function Events({ events }) {
  const [all, setAll] = useState(false);
  const shown = [...events].reverse().slice(0, all ? undefined : 10);
  const text = (kind, { time, ...facts }) => Object.entries(facts).filter(([, value]) => value !== null && value !== "").map(([name, value]) => `${name === kind ? "" : `${name}: `}${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  return html`<h2>Events</h2><${Table} caption="Events" columns=${["time (UTC)", "event", "details"]} empty="No event yet." rows=${shown.map(([kind, data]) => [when(data.time), kind, text(kind, data)])} />
    ${events.length > shown.length && html`<${Button} onClick=${() => setAll(true)}>All ${count(events.length)} events<//>`}`;
}
