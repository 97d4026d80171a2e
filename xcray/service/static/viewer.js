// Show /openapi.json by Swagger UI, with the key of this tab if the service requires one.
import { authorization, savedKey, saveKey } from "./session.js";

const place = document.getElementById("viewer");

const isDark = matchMedia("(prefers-color-scheme: dark)");
const setScheme = () => document.documentElement.classList.toggle("dark-mode", isDark.matches);
isDark.addEventListener("change", setScheme);
setScheme();

function show(spec) {
  if (!window.SwaggerUIBundle) {
    place.textContent = "Swagger UI is not installed: pip install 'xcray[serve]'. The description is at openapi.json.";
    return;
  }
  const ui = SwaggerUIBundle({
    spec,
    domNode: place,
    deepLinking: true,
    filter: true,
    tryItOutEnabled: true,
    displayRequestDuration: true,
    showCommonExtensions: true,
    onComplete: () => savedKey() && ui.preauthorizeApiKey("bearer", savedKey()),
  });
}

function askForKey(reason) {
  const form = document.createElement("form");
  const label = document.createElement("label");
  const field = Object.assign(document.createElement("input"), { type: "password", required: true, autocomplete: "off" });
  const button = Object.assign(document.createElement("button"), { textContent: "Sign in" });
  label.append("Key (xck_...) ", field);
  form.append(label, " ", button);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    saveKey(field.value);
    load();
  });
  const text = Object.assign(document.createElement("p"), { textContent: reason });
  text.setAttribute("role", "alert");
  place.replaceChildren(text, form);
  field.focus();
}

async function load() {
  const response = await fetch("openapi.json", { headers: authorization() });
  const body = await response.json();
  if (response.ok) show(body);
  else askForKey(body.detail);
}

load();
