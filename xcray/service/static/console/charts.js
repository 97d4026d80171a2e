// Plots of numbers that the API returns. The table below a plot is for screen readers and readers of values.
import { html, useEffect, useRef } from "/static/vendor/htm-3.1.1/standalone.module.js";
import uPlot from "/static/vendor/uplot-1.6.32/uPlot.esm.js";
import { count, Table } from "/static/console/parts.js";

const MAX_TABLE_ROWS = 64;
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colors = () => (isDark() ? ["#74b3f2", "#f0b44c", "#62cf8f", "#ff8a8f"] : ["#0b5cad", "#b36b00", "#12703a", "#b3202c"]);
const short = (value) => (value === null || value === undefined ? "" : Number.isInteger(value) ? count(value) : Number(value.toPrecision(4)).toString());

// "0.5", "12", "1.2k", "3M"
export const brief = (n) => (n >= 1e6 ? `${Number((n / 1e6).toPrecision(2))}M` : n >= 1000 ? `${Number((n / 1000).toPrecision(2))}k` : String(n));

function options({ x, y, xs, series, ticks, bars }, place) {
  const color = getComputedStyle(document.documentElement).color;
  const axis = (label, more) => ({ label, stroke: color, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" }, ...more });
  const named = ticks && { splits: () => xs, values: (_, splits) => splits.map((at) => ticks[at] ?? ""), rotate: -40, size: 70 };
  const lines = series.map(({ label, dash, diagonal }, i) => ({ label, stroke: diagonal ? "#8a8f96" : colors()[i], width: 2, dash: dash || diagonal ? [6, 4] : undefined, spanGaps: true,
    points: { show: !diagonal && xs.length <= MAX_TABLE_ROWS }, ...(bars && { paths: uPlot.paths.bars({ size: [0.9, 60] }), fill: `${colors()[i]}99`, points: { show: false } }) }));
  return { width: Math.max(260, place.clientWidth), height: ticks ? 280 : 240, axes: [axis(x, named), axis(y, { size: 66 })], series: [{ label: x, ...(ticks && { value: (_, at) => ticks[at] ?? "" }) }, ...lines],
    scales: { x: { time: false, ...(ticks && { range: [-0.6, xs.length - 0.4] }) }, y: bars ? { range: (_, low, high) => [0, Math.max(1, high) * 1.05] } : {} } };
}

// xs: positions; series: [{label, values}], null where a line has no point. ticks: names of the positions 0, 1, 2, ...
export function Chart({ title, x, y, xs, series, ticks, bars }) {
  const place = useRef(null);
  useEffect(() => {
    const plot = new uPlot(options({ x, y, xs, series, ticks, bars }, place.current), [xs, ...series.map(({ values }) => values)], place.current);
    return () => plot.destroy();
  }, [title, xs.length, String(series.map(({ values }) => values[values.length - 1]))]);
  const drawn = series.filter(({ diagonal }) => !diagonal);
  return html`<figure class="plot"><figcaption>${title}</figcaption><div ref=${place} role="img" aria-label=${`${title}: ${drawn.map(({ label, values }) => `${label} from ${short(values.find((value) => value !== null))} to ${short(values[values.length - 1])}`).join("; ")}`}></div>
    ${xs.length <= MAX_TABLE_ROWS && html`<details><summary>Values</summary><${Table} caption=${`Values: ${title}`} columns=${[x, ...drawn.map(({ label }) => `${label}#`)]} rows=${xs.map((at, i) => [ticks ? ticks[i] : short(at), ...drawn.map(({ values }) => short(values[i]))])} /></details>`}</figure>`;
}

// of: {edges, counts} with whole numbers; the bin from 4 to 8 is named 4–7.
export function CountHistogram({ title, x, y, of }) {
  const ticks = of.counts.map((_, i) => (of.edges[i + 1] - of.edges[i] <= 1 ? brief(of.edges[i]) : `${brief(of.edges[i])}–${brief(of.edges[i + 1] - 1)}`));
  return html`<${Chart} title=${title} x=${x} y=${y} bars ticks=${ticks} xs=${ticks.map((_, i) => i)} series=${[{ label: y, values: of.counts }]} />`;
}
