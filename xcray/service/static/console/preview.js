// The first rows of a file that was chosen, read in the browser before anything is sent.

const HEAD = 65536;  // bytes that are read
const ROWS = 5;
const UNREADABLE = /\.(parquet|npz|npy|xz|bz2)$/i;
export const DELIMITERS = { csv: [",", ";", "|"], tsv: ["\t"] };

// The beginning of a text file, without its last line if that is cut; null: cannot be shown.
export async function readHead(file) {
  if (UNREADABLE.test(file.name)) return null;
  const packed = /\.gz$/i.test(file.name), stream = file.slice(0, HEAD).stream();
  const reader = (packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream).getReader();
  const decoder = new TextDecoder();
  let text = "", whole = file.size <= HEAD;
  try {
    for (let part = await reader.read(); !part.done && text.length < HEAD; part = await reader.read()) text += decoder.decode(part.value, { stream: true });
  } catch {
    whole = false;  // only the beginning of the compressed file was read
  }
  return whole ? text : text.slice(0, text.lastIndexOf("\n") + 1) || text;
}

// The delimiter that occurs most often in the first line.
export function guessDelimiter(text, format) {
  const first = text.split("\n", 1)[0], times = (mark) => first.split(mark).length;
  return DELIMITERS[format].reduce((best, mark) => (times(mark) > times(best) ? mark : best));
}

// ";" if most values of a column have it and none has "|", the default.
export function guessSeparator({ rows }, name) {
  const values = rows.map((row) => row[name]).filter((value) => typeof value === "string"), count = (mark) => values.filter((value) => value.includes(mark)).length;
  return 2 * count(";") > values.length && !count("|") ? ";" : "";
}

// The rows of a table: lists of fields. quoted: fields can be in double quotes.
function tableRows(text, delimiter, quoted, most) {
  const rows = [];
  let row = [], field = "", inside = false;
  for (let i = 0; i < text.length && rows.length < most; i += 1) {
    const char = text[i];
    if (inside && char !== '"') field += char;
    else if (inside && text[i + 1] === '"') { field += char; i += 1; }
    else if (inside) inside = false;
    else if (quoted && char === '"' && !field) inside = true;
    else if (char === delimiter) { row.push(field); field = ""; }
    else if (char === "\n") {
      rows.push([...row, field.replace(/\r$/, "")]);
      row = []; field = "";
    } else field += char;
  }
  return rows.length < most && (field || row.length) ? [...rows, [...row, field]] : rows;
}

function jsonRows(lines) {
  const values = lines.map((line) => { try { return JSON.parse(line); } catch { return null; } });
  const objects = values.filter((value) => value && typeof value === "object" && !Array.isArray(value));
  return { columns: [...new Set(objects.flatMap(Object.keys))], rows: objects };
}

// {columns, rows: objects by column} of the first rows; {lines} of formats without columns.
export function firstRows(text, { format, delimiter, header }) {
  const lines = text.split("\n").filter((line) => line.trim()).slice(0, ROWS);
  if (format === "jsonl") return jsonRows(lines);
  if (!DELIMITERS[format]) return { lines: lines.map((line) => line.slice(0, 200)) };
  const [first = [], ...rest] = tableRows(text, delimiter, format === "csv", ROWS + 1);
  const columns = first.map((name, i) => (header ? name.trim() : `column ${i + 1}`));
  const rows = header ? rest : [first, ...rest];
  return { columns, rows: rows.slice(0, ROWS).map((row) => Object.fromEntries(columns.map((name, i) => [name, row[i] ?? ""]))) };
}

// The column with the longest values: the likely text of a file without a column "text".
export function longestColumn({ columns, rows }) {
  const size = (name) => rows.reduce((sum, row) => sum + (typeof row[name] === "string" ? row[name].length : 0), 0);
  return columns.reduce((best, name) => (size(name) > size(best) ? name : best), columns[0]);
}
