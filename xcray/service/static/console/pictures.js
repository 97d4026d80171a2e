// Pictures that the service draws: the same SVG that `xcray report` writes.
import { html, useEffect, useRef, useState } from "../vendor/htm-3.1.1/standalone.module.js";
import { getText } from "./api.js";
import { Table, Trouble, useLoaded } from "./parts.js";

const MIN_WIDTH = 240, MAX_WIDTH = 2400, MAX_VALUES = 200;

// [[series, value]] of the marks that have a value.
const values = (drawing) => [...drawing.querySelectorAll("[data-series]")].flatMap((series) => [...series.querySelectorAll("title")].map((title) => [series.dataset.series, title.textContent]));

// path: of the picture. panel: the only one that is drawn, from 1. turn: draw it again when this changes. seconds: draw it again so often; 0: once.
export function Picture({ path, panel, turn = 0, seconds = 0 }) {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const measure = () => setWidth(Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, Math.floor(place.current.clientWidth))));
    const watch = new ResizeObserver(measure);
    watch.observe(place.current);
    measure();
    return () => watch.disconnect();
  }, []);
  const [text, error] = useLoaded(async () => (width ? getText(`${path}?width=${width}${panel ? `&panel=${panel}` : ""}`) : ""), [path, turn, width], seconds);
  const [listed, setListed] = useState([]);
  useEffect(() => {
    if (!text) return;
    const drawing = document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
    setListed(values(drawing));
    place.current.replaceChildren(drawing);
  }, [text]);
  const caption = `Values: ${path.split("/").pop().replaceAll("_", " ")}${panel ? ", summary" : ""}`;  // unique on the page
  return html`<figure class="picture"><div ref=${place}></div><${Trouble} error=${error && error.status !== 404 && error} />
    ${listed.length > 0 && listed.length <= MAX_VALUES && html`<details><summary>Values</summary><${Table} caption=${caption} columns=${["series", "value"]} rows=${listed} /></details>`}</figure>`;
}
