// Runs the script of a page without a browser: node draw.js PAGE SEARCH. Prints counts as JSON.
"use strict";
const fs = require("fs");

class Element {
  constructor(name) { Object.assign(this, { name, attributes: {}, children: [], listeners: {}, text: "" }); }
  get clientWidth() { return 800; }
  get clientHeight() { return 600; }
  get textContent() { return this.text; }
  set textContent(text) { this.text = text; }
  set innerHTML(_) { throw new Error("a text could become markup"); }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(kind, act) { this.listeners[kind] = act; }
  querySelector() { return null; }
  getBoundingClientRect() { return { left: 0, top: 0, width: 800, height: 600 }; }
  *all() {
    yield this;
    for (const child of this.children) if (child instanceof Element) yield* child.all();
  }
}

const [, , file, wanted] = process.argv;
const html = fs.readFileSync(file, "utf8");
const data = new Element("script"), graph = new Element("div");
data.text = html.match(/<script type="application\/json" id="data">([^]*?)<\/script>/)[1];
global.document = {
  getElementById: (id) => ({ data, graph })[id],
  createElement: (name) => new Element(name),
  createElementNS: (_, name) => new Element(name),
};
global.window = new Element("window");
const scripts = [...html.matchAll(/<script>([^]*?)<\/script>/g)].map((found) => found[1]);
let largest = 0, layouts = 0;
global.counted = (library) => {
  const layout = library.layout;
  return { ...library, layout: (g) => { layouts += 1; largest = Math.max(largest, g.nodeCount()); layout(g); } };
};
const marked = scripts[0].replace("/* Draws", "dagre = counted(dagre);\n/* Draws");
new Function("document", "window", marked)(global.document, global.window);

const drawn = (kind) => [...graph.all()].filter((e) => (e.attributes.class || "").split(" ")[0] === kind).length;
const button = (text) => [...graph.all()].find((e) => e.name === "button" && e.children[0] === text);
const shown = { operators: drawn("operator"), groups: drawn("group"), layouts, largest };
const search = [...graph.all()].find((e) => e.name === "input");
search.value = wanted;
search.listeners.input();
const found = [...graph.all()].find((e) => e.attributes.class === "count").text;
button("Open all").listeners.click();
const opened = { operators: drawn("operator"), groups: drawn("group"), layouts, largest };
button("Close all").listeners.click();
const texts = [...graph.all()].filter((e) => e.name === "text").map((e) => e.text);
console.log(JSON.stringify({ shown, found, opened, closed: { operators: drawn("operator") }, texts }));
