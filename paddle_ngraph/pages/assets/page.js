/* Draws the graphs of the page: groups that open and close, search, and details.

A drawing is a tree. Its leaves are operators. The groups of the report are nodes, and so are runs of
operators outside of groups. A node with many children gets parts, so that whatever is open stays
small: a reader opens a graph of thousands of operators part by part. Each open node is laid out by
itself, by dagre, with its children as boxes. An edge is drawn where the paths of its two operators
part. */
"use strict";
(() => {
  const MOST_CHILDREN = 40, SHORTEST_RUN = 5, OPEN_AT_FIRST = 45, MOST_FOUND = 200;
  const HEIGHT = 26, HEAD = 30, PAD = 12, LETTER = 7.2, HUES = [210, 265, 160, 330, 185, 50, 290, 120];
  const SVG = "http://www.w3.org/2000/svg";
  const drawings = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("graph");

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }
  function shape(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  /* The nodes of a drawing. */
  function summary(leaves) {
    const counts = new Map();
    for (const leaf of leaves) counts.set(leaf.name, (counts.get(leaf.name) || 0) + 1);
    const common = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 3);
    return common.map(([name, count]) => (count > 1 ? `${name} x${count}` : name)).join(", ");
  }
  function leavesOf(node) {
    return node.children ? node.children.flatMap(leavesOf) : [node];
  }
  function inner(name, kind, children, hue, details) {
    const node = { name, kind, hue, details: details || [], isOpen: false };
    node.children = parts(children, kind, hue);
    node.leaves = leavesOf(node);
    node.text = `${node.leaves.length} operators: ${summary(node.leaves)}`;
    for (const child of node.children) child.parent = node;
    return node;
  }
  function parts(children, kind, hue) {
    if (children.length <= MOST_CHILDREN) return children;
    const size = Math.max(12, Math.ceil(Math.sqrt(children.length)));
    const made = [];
    for (let at = 0; at < children.length; at += size) {
      const some = children.slice(at, at + size);
      made.push(inner(`part ${made.length + 1}`, "part", some, kind === "engine" ? hue : null));
    }
    return parts(made, kind, hue);
  }
  function treeOf(drawing) {
    const texts = drawing.texts;
    const pairs = (flat) =>
      Array.from({ length: flat.length / 2 }, (_, i) => [texts[flat[2 * i]], texts[flat[2 * i + 1]]]);
    const leaves = drawing.operators.map(([name, kind, group, inputs, details], index) => ({
      index, group, inputs, name: texts[name], kind: texts[kind], readers: [], details: pairs(details),
    }));
    for (const leaf of leaves) for (const input of leaf.inputs) leaves[input].readers.push(leaf.index);
    const members = drawing.groups.map((_, group) => leaves.filter((leaf) => leaf.group === group));
    const top = [], seen = new Set();
    let run = [];
    const endRun = () => {
      if (run.length < SHORTEST_RUN) top.push(...run);
      else top.push(inner("by Paddle", "native", run));
      run = [];
    };
    for (const leaf of leaves) {
      if (leaf.group < 0) {
        if (leaf.kind === "native") run.push(leaf);
        else { endRun(); top.push(leaf); }
      } else if (!seen.has(leaf.group)) {
        endRun();
        seen.add(leaf.group);
        const [name, details] = drawing.groups[leaf.group];
        const hue = HUES[leaf.group % HUES.length];
        top.push(inner(texts[name], "engine", members[leaf.group], hue, pairs(details)));
      }
    }
    endRun();
    const tree = inner(drawing.title, "root", top);
    tree.isOpen = true;
    tree.all = leaves;
    return tree;
  }
  function pathOf(node) {
    const path = [];
    for (let at = node; at; at = at.parent) path.unshift(at);
    return path;
  }
  /* For each node the edges between its children, as sets of pairs. */
  function connect(tree) {
    const paths = new Map(tree.all.map((leaf) => [leaf, pathOf(leaf)]));
    for (const leaf of tree.all) {
      for (const input of leaf.inputs) {
        const from = paths.get(tree.all[input]), to = paths.get(leaf);
        let depth = 0;
        while (from[depth + 1] === to[depth + 1] && from[depth + 1]) depth += 1;
        const [a, b] = [from[depth + 1], to[depth + 1]];
        if (!a || !b) continue;
        const owner = from[depth];
        owner.edges = owner.edges || new Map();
        const targets = owner.edges.get(a) || new Map();
        targets.set(b, (targets.get(b) || 0) + 1);
        owner.edges.set(a, targets);
      }
    }
  }

  /* Layout: sizes from the inside out; a layout is kept until a node inside opens or closes. */
  function layout(node) {
    if (!node.children) {
      node.width = 24 + LETTER * Math.min(node.name.length, 34);
      node.height = HEIGHT;
    } else if (!node.isOpen) {
      node.width = 28 + LETTER * Math.max(Math.min(node.name.length, 40), Math.min(node.text.length, 46) * 0.88);
      node.height = 46;
    } else if (!node.isFresh) {
      arrange(node);
      node.isFresh = true;
    }
  }
  function arrange(node) {
    node.lines = [];
    for (const child of node.children) layout(child);
    for (const [from, targets] of node.edges || []) {
      for (const [to, count] of targets) node.lines.push({ from, to, count });
    }
    const size = node.children[0].kind === "part" ? column(node) : layers(node);
    const least = node.kind === "root" ? 0 : 60 + LETTER * Math.min(node.name.length, 40);
    node.width = Math.max(size.width || 0, least);
    node.height = (size.height || 0) + HEAD;
  }
  /* Parts follow each other in program order: one column, with other edges as arcs beside it. */
  function column(node) {
    const widest = Math.max(...node.children.map((child) => child.width));
    let height = PAD, furthest = 0;
    node.children.forEach((child, index) => {
      child.number = index;
      child.place = { x: PAD + widest / 2, y: height + child.height / 2 };
      height += child.height + 26;
    });
    for (const line of node.lines) {
      const { from, to } = line, span = to.number - from.number;
      const [above, below] = [from.place, to.place];
      if (span === 1) {
        line.points = [{ x: above.x, y: above.y + from.height / 2 }, { x: below.x, y: below.y - to.height / 2 }];
        continue;
      }
      const [start, end] = [above.x + from.width / 2, below.x + to.width / 2];
      const out = PAD + widest + 10 + 5 * Math.min(Math.abs(span), 40);
      const [y1, y2] = [above.y + from.height / 4, below.y - to.height / 4];
      line.points = [{ x: start, y: y1 }, { x: out, y: y1 }, { x: out, y: y2 }, { x: end, y: y2 }];
      line.isArc = true;
      furthest = Math.max(furthest, out);
    }
    return { width: Math.max(furthest, PAD + widest) + PAD, height: height - 26 + PAD };
  }
  function layers(node) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ nodesep: 16, ranksep: 26, marginx: PAD, marginy: PAD, ranker: "tight-tree" });
    node.children.forEach((child, index) => {
      child.place = { width: child.width, height: child.height };
      child.number = index;
      graph.setNode(String(index), child.place);
    });
    for (const line of node.lines) {
      graph.setEdge(String(line.from.number), String(line.to.number), line);
    }
    dagre.layout(graph);
    return graph.graph();
  }
  function stale(node) {
    for (let at = node; at; at = at.parent) at.isFresh = false;
  }

  /* The view of one drawing. */
  function view(tree) {
    const svg = shape("svg", { role: "img", "aria-label": tree.name });
    const side = element("div", { class: "side", "aria-live": "polite" });
    const found = element("div", { class: "found" });
    const search = element("input", {
      type: "search", placeholder: "Search operators, reasons, lines …", "aria-label": "Search",
    });
    const count = element("span", { class: "count" });
    const box = { x: 0, y: 0, scale: 1 };
    let selected = null, matches = new Set(), groupsOfMatches = new Map();

    function showBox() {
      const { clientWidth: width, clientHeight: height } = svg;
      svg.setAttribute("viewBox", `${box.x} ${box.y} ${width / box.scale} ${height / box.scale}`);
    }
    function fit(all) {
      const width = svg.clientWidth || 800, height = svg.clientHeight || 600;
      const least = all ? 0 : 0.55;
      box.scale = Math.min(1.1, Math.max(least, Math.min(width / tree.width, all ? height / tree.height : 2)));
      box.x = (tree.width - width / box.scale) / 2;
      box.y = all ? (tree.height - height / box.scale) / 2 : 0;
      showBox();
    }
    function zoom(factor, x, y) {
      const width = svg.clientWidth / box.scale, height = svg.clientHeight / box.scale;
      const atX = x === undefined ? 0.5 : x, atY = y === undefined ? 0.5 : y;
      box.scale = Math.min(3, Math.max(0.02, box.scale * factor));
      box.x += atX * (width - svg.clientWidth / box.scale);
      box.y += atY * (height - svg.clientHeight / box.scale);
      showBox();
    }
    function colour(node) {
      return node.hue === null || node.hue === undefined ? "" : `--hue: ${node.hue}`;
    }
    function drawn(node) {
      const kind = node.children ? `group ${node.kind}` : `operator ${node.kind}`;
      const marks = [node === selected ? "selected" : "", matches.has(node) || groupsOfMatches.has(node) ? "match" : ""];
      const made = shape("g", {
        class: [kind, ...marks].join(" "), style: colour(node), tabindex: 0, role: "button",
        "aria-label": node.children ? `${node.name}, ${node.text}` : node.name,
      });
      if (node.children) made.setAttribute("aria-expanded", node.isOpen);
      made.append(shape("rect", { width: node.width, height: node.height, rx: node.children ? 8 : 5 }));
      const mark = node.children ? (node.isOpen ? "− " : "+ ") : "";
      const name = mark + cut(node.name, 40);
      made.append(shape("text", node.children ? { x: 12, y: 19, class: "name" } : { x: node.width / 2, y: 17, "text-anchor": "middle" }, name));
      made.append(shape("title", {}, node.children ? node.text : node.name));
      if (node.children && !node.isOpen) made.append(shape("text", { x: 12, y: 36, class: "text" }, cut(node.text, 46)));
      if (groupsOfMatches.has(node) && !node.isOpen) {
        made.append(shape("text", { x: node.width - 10, y: 19, "text-anchor": "end", class: "hits" }, `${groupsOfMatches.get(node)} found`));
      }
      if (node.children && node.isOpen) made.append(inside(node));
      const act = (event) => {
        event.stopPropagation();
        if (hasMoved) return;
        select(node, node.children);
      };
      made.addEventListener("click", act);
      made.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(event); }
      });
      return made;
    }
    function inside(node) {
      const made = shape("g", { transform: `translate(0 ${node.kind === "root" ? 0 : HEAD})` });
      for (const line of node.lines) {
        const [first, ...rest] = line.points;
        let path = `M${first.x} ${first.y}`;
        for (let i = 0; i < rest.length; i += 1) {
          const end = i + 1 < rest.length ? { x: (rest[i].x + rest[i + 1].x) / 2, y: (rest[i].y + rest[i + 1].y) / 2 } : rest[i];
          path += `Q${rest[i].x} ${rest[i].y} ${end.x} ${end.y}`;
        }
        const isSelected = selected && [line.from, line.to].includes(selected);
        made.append(shape("path", {
          d: path, class: `edge${line.isArc ? " arc" : ""}${isSelected ? " selected" : ""}`,
          "stroke-width": Math.min(1 + Math.log2(line.count), 4), "marker-end": "url(#arrow)",
        }));
      }
      for (const child of node.children) {
        const moved = shape("g", {
          transform: `translate(${child.place.x - child.width / 2} ${child.place.y - child.height / 2})`,
        });
        moved.append(drawn(child));
        made.append(moved);
      }
      return made;
    }
    function draw() {
      layout(tree);
      const arrow = shape("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto", markerUnits: "userSpaceOnUse" });
      arrow.append(shape("path", { d: "M0 0L8 4L0 8z" }));
      const definitions = shape("defs", {});
      definitions.append(arrow);
      svg.replaceChildren(definitions, inside(tree));
    }
    /* The position of a node in the drawing, whose ancestors are open. */
    function placeOf(node) {
      let x = 0, y = 0;
      for (let at = node; at.parent; at = at.parent) {
        x += at.place.x - at.width / 2;
        y += at.place.y - at.height / 2 + (at.parent.kind === "root" ? 0 : HEAD);
      }
      return { x, y };
    }
    function onScreen(node) {
      const { x, y } = placeOf(node);
      return { x: (x - box.x) * box.scale, y: (y - box.y) * box.scale };
    }
    function keep(node, before) {
      const after = placeOf(node);
      box.x = after.x - before.x / box.scale;
      box.y = after.y - before.y / box.scale;
      showBox();
    }
    function select(node, toggles) {
      const before = onScreen(node);
      selected = node;
      if (toggles) { node.isOpen = !node.isOpen; stale(node); }
      draw();
      keep(node, before);
      show(node);
      const box2 = svg.querySelector("g.selected");
      if (box2) box2.focus({ preventScroll: true });
    }
    function reveal(node) {
      for (let at = node.parent; at; at = at.parent) {
        if (!at.isOpen) { at.isOpen = true; stale(at); }
      }
      selected = node;
      draw();
      const { x, y } = placeOf(node);
      box.scale = Math.max(box.scale, 0.8);
      box.x = x + node.width / 2 - svg.clientWidth / box.scale / 2;
      box.y = y + node.height / 2 - svg.clientHeight / box.scale / 2;
      showBox();
      show(node);
    }
    function links(title, indices) {
      if (!indices.length) return [];
      const shown = indices.slice(0, 30).map((index) => {
        const leaf = tree.all[index];
        return element("button", { type: "button", onclick: () => reveal(leaf) }, leaf.name);
      });
      const rest = indices.length > 30 ? [`and ${indices.length - 30} more`] : [];
      return [element("h4", {}, title), element("div", { class: "links" }, ...shown, ...rest)];
    }
    function show(node) {
      const list = element("dl", {});
      for (const [name, text] of node.details) list.append(element("dt", {}, name), element("dd", {}, text));
      const isLeaf = !node.children;
      side.replaceChildren(
        element("h3", {}, node.name),
        element("p", {}, isLeaf ? KINDS[node.kind] || "" : node.text),
        list,
        ...(isLeaf ? links("Reads results of", node.inputs) : []),
        ...(isLeaf ? links("Read by", node.readers) : []),
      );
    }
    function find() {
      const wanted = search.value.trim().toLowerCase();
      matches = new Set();
      groupsOfMatches = new Map();
      if (wanted) {
        for (const leaf of tree.all) {
          const texts = [leaf.name, ...leaf.details.map(([, text]) => text)];
          if (!texts.some((text) => text.toLowerCase().includes(wanted))) continue;
          matches.add(leaf);
          for (let at = leaf.parent; at && at.parent; at = at.parent) {
            groupsOfMatches.set(at, (groupsOfMatches.get(at) || 0) + 1);
          }
        }
      }
      count.textContent = wanted ? `${matches.size} found` : "";
      found.replaceChildren(...[...matches].slice(0, MOST_FOUND).map((leaf) => {
        const place = pathOf(leaf).slice(1, 2)[0];
        const where = place === leaf ? "" : ` — ${place.name}`;
        return element("button", { type: "button", onclick: () => reveal(leaf) }, `${leaf.name}${where}`);
      }));
      if (matches.size > MOST_FOUND) found.append(`and ${matches.size - MOST_FOUND} more`);
      draw();
    }
    function openAll(isOpen) {
      const walk = (node) => {
        if (!node.children) return;
        if (node !== tree) node.isOpen = isOpen;
        node.isFresh = false;
        node.children.forEach(walk);
      };
      walk(tree);
      draw();
      fit(true);
    }
    /* Opens groups level by level, all siblings or none, while what is shown stays small. */
    function openFirst() {
      let shown = tree.children.length;
      const waiting = [tree];
      while (waiting.length) {
        const groups = waiting.shift().children.filter((child) => child.children);
        const more = groups.reduce((sum, group) => sum + group.children.length, 0);
        if (shown + more > OPEN_AT_FIRST) continue;
        shown += more;
        for (const group of groups) group.isOpen = true;
        waiting.push(...groups);
      }
    }
    let from = null, hasMoved = false;
    svg.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, boxX: box.x, boxY: box.y };
      hasMoved = false;
    });
    window.addEventListener("pointermove", (event) => {
      if (!from) return;
      const x = event.clientX - from.x, y = event.clientY - from.y;
      if (Math.abs(x) + Math.abs(y) > 4) hasMoved = true;
      if (!hasMoved) return;
      box.x = from.boxX - x / box.scale;
      box.y = from.boxY - y / box.scale;
      showBox();
    });
    window.addEventListener("pointerup", () => { from = null; });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const area = svg.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), (event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
    }, { passive: false });
    search.addEventListener("input", find);
    const button = (text, label, act) => element("button", { type: "button", onclick: act, title: label, "aria-label": label }, text);
    const legend = element("span", { class: "legend" },
      ...[["engine", "the engine"], ["kernel", "Paddle's kernel in a function"], ["native", "Paddle"]].map(
        ([kind, text]) => element("span", {}, element("i", { class: kind }), text)));
    const controls = element("div", { class: "controls" }, search, count,
      button("+", "Zoom in", () => zoom(1.3)), button("−", "Zoom out", () => zoom(1 / 1.3)),
      button("Fit", "Show all", () => fit(true)), button("Open all", "Open all groups", () => openAll(true)),
      button("Close all", "Close all groups", () => openAll(false)), legend);
    side.append(element("p", {}, "Select a box for its details. A group opens and closes. Drag to move; Ctrl and the wheel zoom."));
    const made = element("div", { class: "view" }, controls,
      element("div", { class: "panes" }, svg, element("div", { class: "right" }, found, side)));
    openFirst();
    made.start = () => { draw(); fit(false); };
    window.addEventListener("resize", showBox);
    return made;
  }
  const KINDS = {
    engine: "computed by the engine", kernel: "computed by Paddle's kernel inside a function",
    native: "computed by Paddle", other: "",
  };

  const place = element("div", {});
  function showDrawing(index) {
    const drawing = drawings[index];
    if (!drawing.view) {
      const tree = treeOf(drawing);
      connect(tree);
      drawing.view = view(tree);
    }
    place.replaceChildren(drawing.view);
    drawing.view.start();
  }
  if (drawings.length > 1) {
    const choice = element("select", { "aria-label": "Graph", onchange: () => showDrawing(Number(choice.value)) },
      ...drawings.map((drawing, index) => element("option", { value: index }, drawing.title)));
    root.append(choice);
  }
  root.append(place);
  showDrawing(0);
})();
