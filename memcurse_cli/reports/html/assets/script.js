"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("memcurse-charts").textContent);
  const tip = document.getElementById("tip");
  const SVG = "http://www.w3.org/2000/svg";
  const SIZE = 320, MARGIN = 38, CELL = 6;

  // Numbers as the tables show them: three digits, short exponents.
  const number = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "divergent";
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e5)) {
      return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    return size >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
  };

  const element = (name, attributes, parent) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };

  // One eigenvalue: where it stands and what a tooltip says of it.
  const described = ([re, im, kappa]) => {
    const modulus = Math.hypot(re, im);
    const constant = modulus < 1 ? -1 / Math.log(modulus) : null;
    const sign = im < 0 ? "−" : "+";
    return {
      re, im, kappa, modulus, constant,
      text: `λ = ${re.toPrecision(4)} ${sign} ${Math.abs(im).toPrecision(4)}i\n` +
        `|λ| = ${modulus.toPrecision(6)}\n` +
        `τ = ${constant === null ? "divergent" : number(constant) + " steps"}\n` +
        `κ(λ) = ${number(kappa)}`,
    };
  };

  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    const top = y + 14 + box.height > innerHeight ? y - 14 - box.height : y + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  };
  const hide = () => { tip.hidden = true; };

  // The nearest point answers to the pointer; arrow keys walk through them in order of memory.
  const interactive = (svg, points) => {
    const ring = element("circle", { r: 6, class: "chosen", visibility: "hidden" }, svg);
    let chosen = -1;
    const choose = (index, x, y) => {
      chosen = index;
      const point = points[index];
      ring.setAttribute("cx", point.x);
      ring.setAttribute("cy", point.y);
      ring.setAttribute("visibility", "visible");
      if (x === undefined) {
        const box = svg.getBoundingClientRect(), scale = box.width / SIZE;
        [x, y] = [box.left + point.x * scale, box.top + point.y * scale];
      }
      show(point.text, x, y);
    };
    const leave = () => { ring.setAttribute("visibility", "hidden"); hide(); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), scale = SIZE / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      let best = -1, least = 20 ** 2;
      points.forEach((point, index) => {
        const distance = (point.x - x) ** 2 + (point.y - y) ** 2;
        if (distance < least) [best, least] = [index, distance];
      });
      if (best < 0) leave(); else choose(best, event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!step || !points.length) return;
      event.preventDefault();
      choose(((chosen < 0 && step < 0 ? 0 : chosen) + step + points.length) % points.length);
    });
  };

  // The nearest step answers to the pointer with all of its curves; arrow keys walk the steps.
  const stepwise = (svg, stops, top, base) => {
    const cursor = element("line", { y1: top, y2: base, class: "cursor", visibility: "hidden" }, svg);
    let rings = [], chosen = -1;
    const clear = () => { for (const ring of rings) ring.remove(); rings = []; };
    const leave = () => { clear(); cursor.setAttribute("visibility", "hidden"); hide(); };
    const choose = (index, x, y) => {
      chosen = index;
      const stop = stops[index];
      clear();
      rings = stop.heights.map((cy) => element("circle", { cx: stop.x, cy, r: 5, class: "chosen" }, svg));
      cursor.setAttribute("x1", stop.x);
      cursor.setAttribute("x2", stop.x);
      cursor.setAttribute("visibility", "visible");
      if (x === undefined) {
        const box = svg.getBoundingClientRect(), scale = box.width / SIZE;
        [x, y] = [box.left + stop.x * scale, box.top + (stop.heights[0] ?? top) * scale];
      }
      show(stop.text, x, y);
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * SIZE / box.width;
      let best = 0;
      stops.forEach((stop, index) => { if (Math.abs(stop.x - x) < Math.abs(stops[best].x - x)) best = index; });
      choose(best, event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const end = stops.length - 1;
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Escape") leave();
      const to = event.key === "Home" ? 0 : event.key === "End" ? end
        : step ? (chosen < 0 && step < 0 ? end : (chosen + step + stops.length) % stops.length) : -1;
      if (to < 0) return;
      event.preventDefault();
      choose(to);
    });
  };

  const figure = (host, label, caption) => {
    const made = document.createElement("figure");
    const said = document.createElement("figcaption");
    said.textContent = caption;
    const svg = element("svg", {
      viewBox: `0 0 ${SIZE} ${SIZE}`, class: "chart", role: "img", tabindex: 0, "aria-label": label,
    });
    made.append(svg, said);
    host.append(made);
    return svg;
  };
  const label = (svg, x, y, text, anchor = "middle") => {
    element("text", { x, y, "text-anchor": anchor }, svg).textContent = text;
  };

  const drawDisk = (host, layer, points) => {
    const reach = Math.max(1.08, 1.08 * Math.max(...points.map((point) => point.modulus)));
    const scale = (SIZE / 2 - 8) / reach, middle = SIZE / 2;
    const svg = figure(
      host,
      `Eigenvalues of ${layer.name} in the unit disk. Arrow keys walk through them by memory.`,
      `Eigenvalues in the unit disk${layer.count > points.length
        ? `, ${points.length} of ${layer.count.toLocaleString("en")}` : ""}`,
    );
    element("line", { x1: 0, x2: SIZE, y1: middle, y2: middle, class: "grid" }, svg);
    element("line", { x1: middle, x2: middle, y1: 0, y2: SIZE, class: "grid" }, svg);
    element("circle", { cx: middle, cy: middle, r: scale, class: "axis" }, svg);
    interactive(svg, points.map((point) => {
      const [x, y] = [middle + scale * point.re, middle - scale * point.im];
      element("circle", { cx: x, cy: y, r: 3, class: point.modulus < 1 ? "dot" : "dot out" }, svg);
      return { x, y, text: point.text };
    }));
  };

  // A number short enough to stand left of an axis.
  const tick = (value) => value >= 1e4 ? value.toExponential().replace("e+", "e") : number(value);

  // A matched pair of eigenvalues, and what a tooltip says of it.
  const moved = ([re, im, reAfter, imAfter]) => {
    const [before, after] = [described([re, im]), described([reAfter, imAfter])];
    const [rows, rowsAfter] = [before, after].map((point) => point.text.split("\n").slice(0, 3));
    return { before, after, text: rows.map((row, i) => `${row} → ${rowsAfter[i].split(" = ")[1]}`).join("\n") };
  };
  const partOf = (shown, count) => shown < count ? `, ${shown} of ${count.toLocaleString("en")}` : "";

  const drawMoves = (host, layer, moves) => {
    const moduli = moves.flatMap(({ before, after }) => [before.modulus, after.modulus]);
    const reach = 1.08 * Math.max(1, ...moduli);
    const scale = (SIZE / 2 - 8) / reach, middle = SIZE / 2;
    const svg = figure(
      host,
      `How the eigenvalues of ${layer.name} moved. Arrow keys walk through them by memory.`,
      `Eigenvalues from before (rings) to after (dots), conjugates as one${partOf(moves.length, layer.count)}`,
    );
    element("line", { x1: 0, x2: SIZE, y1: middle, y2: middle, class: "grid" }, svg);
    element("line", { x1: middle, x2: middle, y1: 0, y2: SIZE, class: "grid" }, svg);
    element("circle", { cx: middle, cy: middle, r: scale, class: "axis" }, svg);
    const place = ({ re, im }) => [middle + scale * re, middle - scale * im];
    interactive(svg, moves.map(({ before, after, text }) => {
      const [x1, y1] = place(before), [x, y] = place(after);
      element("line", { x1, y1, x2: x, y2: y, class: "move" }, svg);
      element("circle", { cx: x1, cy: y1, r: 3, class: "ring" }, svg);
      element("circle", { cx: x, cy: y, r: 3, class: after.modulus < 1 ? "dot" : "dot out" }, svg);
      return { x, y, text };
    }));
  };

  // Near the unit circle moves are too short to see; there the time constants tell them apart.
  const drawMemories = (host, layer, moves) => {
    const shown = moves.filter(({ before, after }) => before.constant > 0 && after.constant > 0);
    if (!shown.length) return;
    const log = Math.log10;
    const logs = shown.flatMap(({ before, after }) => [log(before.constant), log(after.constant)]);
    const [low, high] = [Math.min(...logs) - 0.1, Math.max(...logs) + 0.1];
    const room = SIZE - MARGIN - 10, base = SIZE - MARGIN;
    const across = (value) => MARGIN + room * (log(value) - low) / (high - low);
    const up = (value) => base - room * (log(value) - low) / (high - low);
    const svg = figure(
      host,
      `Time constants in ${layer.name} before and after. Arrow keys walk through them by memory.`,
      `Time constant τ in steps, before and after: those above the dashed line moved outward` +
        (shown.length < moves.length ? `; ${moves.length - shown.length} with |λ| ≥ 1 or λ = 0 not drawn` : ""),
    );
    const decades = Math.floor(high) - Math.ceil(low) + 1, stride = Math.ceil(decades / 7) || 1;
    const parts = decades >= 3 ? [1] : decades >= 2 ? [1, 3] : [1, 2, 3, 5, 7];
    for (let decade = Math.floor(low); decade <= high; decade += stride) {
      for (const value of parts.map((part) => part * 10 ** decade)) {
        if (log(value) < low || log(value) > high) continue;
        const [x, y] = [across(value), up(value)];
        element("line", { x1: x, x2: x, y1: 10, y2: base, class: "grid" }, svg);
        element("line", { x1: MARGIN, x2: SIZE - 10, y1: y, y2: y, class: "grid" }, svg);
        label(svg, x, base + 14, tick(value));
        label(svg, MARGIN - 4, y + 4, tick(value), "end");
      }
    }
    label(svg, MARGIN + room / 2, SIZE - 6, "τ before");
    label(svg, 4, 12, "τ after", "start");
    element("line", { x1: MARGIN, y1: base, x2: SIZE - 10, y2: 10, class: "curve endless" }, svg);
    interactive(svg, shown.map(({ before, after, text }) => {
      const [x, y] = [across(before.constant), up(after.constant)];
      element("circle", { cx: x, cy: y, r: 3, class: "dot" }, svg);
      return { x, y, text };
    }));
  };

  const drawSensitivity = (host, layer, points, curves) => {
    const shown = points.filter((point) => point.constant > 0 && point.kappa > 0);
    const lines = curves.filter((curve) => curve.points.length);
    if (!shown.length || !lines.length) return;
    const log = Math.log10;
    const memory = shown.map((point) => log(point.constant));
    const [left, right] = [
      Math.floor(Math.min(0, ...memory)), Math.ceil(Math.max(2, ...memory) + 0.05),
    ];
    const inside = lines.flatMap((curve) => curve.points)
      .filter(([constant]) => log(constant) >= left && log(constant) <= right)
      .map(([, kappa]) => log(kappa));
    const heights = [...shown.map((point) => log(point.kappa)), ...inside];
    const [bottom, top] = [Math.floor(Math.min(...heights)), Math.ceil(Math.max(...heights))];
    const room = SIZE - MARGIN - 10;
    const across = (value) => MARGIN + room * (value - left) / (right - left);
    const up = (value) => 10 + room * (top - value) / Math.max(1, top - bottom);
    const svg = figure(
      host,
      `Sensitivity against memory in ${layer.name}. Arrow keys walk through the eigenvalues.`,
      "κ(λ) against the time constant; behind it the theory of a real eigenvalue: " +
        lines.map((curve) => curve.horizon === null
          ? "dashed, infinite sequence" : `solid, ${curve.horizon} steps`).join("; "),
    );
    for (let decade = left; decade <= right; decade += 1) {
      element("line", { x1: across(decade), x2: across(decade), y1: 10, y2: SIZE - MARGIN + 0, class: "grid" }, svg);
      const last = decade === right ? "end" : undefined;
      label(svg, across(decade), SIZE - MARGIN + 14, decade < 0 || decade > 4 ? `1e${decade}` : 10 ** decade, last);
    }
    const stride = Math.ceil((top - bottom) / 8) || 1;
    for (let decade = bottom; decade <= top; decade += stride) {
      element("line", { x1: MARGIN, x2: SIZE - 10, y1: up(decade), y2: up(decade), class: "grid" }, svg);
      label(svg, MARGIN - 4, up(decade) + 4, `1e${decade}`, "end");
    }
    label(svg, MARGIN + room / 2, SIZE - 6, "τ, steps");
    for (const curve of lines) {
      const path = curve.points
        .filter(([constant]) => log(constant) >= left && log(constant) <= right)
        .map(([constant, kappa]) => `${across(log(constant)).toFixed(1)},${up(log(kappa)).toFixed(1)}`);
      element("polyline", { points: path.join(" "), class: curve.horizon === null ? "curve endless" : "curve" }, svg);
    }
    interactive(svg, shown.map((point) => {
      const [x, y] = [across(log(point.constant)), up(log(point.kappa))];
      element("circle", { cx: x, cy: y, r: 3, class: "dot" }, svg);
      return { x, y, text: point.text };
    }));
  };

  const keyed = (host, curves) => {
    const said = host.lastElementChild.querySelector("figcaption");
    curves.forEach((curve, index) => {
      const item = document.createElement("span");
      item.className = "key";
      const sample = element("svg", { viewBox: "0 0 24 8", "aria-hidden": true });
      element("line", { x1: 0, x2: 24, y1: 4, y2: 4, class: `curve c${index % 6}` }, sample);
      item.append(sample, ` ${curve.name}`);
      said.append(" ", item);
    });
  };

  // Curves over the steps of a run, on a logarithmic scale, above a band of verdicts.
  const drawPanel = (host, layer, panel, run) => {
    const curves = panel.curves.filter((curve) => curve.values.some((value) => value !== null));
    const known = curves.flatMap((curve) => curve.values).filter((value) => typeof value === "number");
    if (!curves.length) return;
    const log = Math.log10, low = Math.min(...known, 1e300), high = Math.max(...known, 0);
    const [bottom, top] = high > 0
      ? [log(low) - 0.05, Math.max(log(high) + 0.05, log(low) + 0.3)] : [0, 1];
    const base = SIZE - MARGIN - 12, room = SIZE - MARGIN - 10;
    const [first, last] = [run.steps[0], run.steps.at(-1)];
    const across = (step) => MARGIN + room * (last > first ? (step - first) / (last - first) : 0.5);
    const up = (value) => 18 + (base - 18) * (top - log(value)) / (top - bottom);
    const svg = figure(
      host,
      `${panel.title} of ${layer.name} over the steps of the run. Arrow keys walk through them.`,
      `${panel.title}${curves.length > 1 ? ": " : ""}`,
    );
    if (curves.length > 1) keyed(host, curves);
    const decades = Math.floor(top) - Math.ceil(bottom) + 1;
    const parts = decades >= 3 ? [1] : decades >= 2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7];
    const stride = Math.ceil(decades / 7) || 1;
    for (let decade = Math.floor(bottom); decade <= top; decade += stride) {
      for (const value of parts.map((part) => part * 10 ** decade)) {
        if (log(value) < bottom || log(value) > top || tick(value).length > 5) continue;
        element("line", { x1: MARGIN, x2: SIZE - 10, y1: up(value), y2: up(value), class: "grid" }, svg);
        label(svg, MARGIN - 4, up(value) + 4, tick(value), "end");
      }
    }
    label(svg, across(first), SIZE - MARGIN + 14, first, last > first ? "start" : "middle");
    if (last > first) label(svg, across(last), SIZE - MARGIN + 14, last, "end");
    label(svg, MARGIN + room / 2, SIZE - 6, "step");
    const edge = (index) => across((run.steps[index] + run.steps[index + 1]) / 2);
    const heights = { ok: 3, watch: 6, cursed: 10, error: 0 };
    run.verdicts.forEach((verdict, index) => {
      const left = index ? edge(index - 1) : MARGIN;
      const right = index + 1 < run.steps.length ? edge(index) : SIZE - 10;
      const height = heights[verdict];
      element("rect", { x: left, y: SIZE - MARGIN - height, width: right - left, height, class: `band ${verdict}` }, svg);
    });
    const stops = run.steps.map((step, index) => (
      { x: across(step), heights: [], text: `step ${step}: ${run.verdicts[index]}` }
    ));
    curves.forEach((curve, place) => {
      let path = [];
      const flush = () => {
        if (path.length) element("polyline", { points: path.join(" "), class: `curve c${place % 6}` }, svg);
        path = [];
      };
      curve.values.forEach((value, index) => {
        if (value === null) { flush(); return; }
        const stop = stops[index], x = stop.x, diverges = typeof value === "string";
        const y = diverges ? 10 : up(value);
        if (diverges) flush(); else path.push(`${x.toFixed(1)},${y.toFixed(1)}`);
        if (diverges) element("path", { d: `M${x - 3},13 h6 l-3,-6 z`, class: "dot out" }, svg);
        else if (run.steps.length <= 60) element("circle", { cx: x, cy: y, r: 2, class: `mark c${place % 6}` }, svg);
        stop.heights.push(y);
        stop.text += `\n${curve.name} = ${diverges ? value : number(value)}`;
      });
      flush();
    });
    stepwise(svg, stops, 10, SIZE - MARGIN);
  };

  const drawHessian = (host, layer) => {
    const map = layer.hessian;
    if (!map) return;
    const bytes = Uint8Array.from(atob(map.shades), (letter) => letter.charCodeAt(0));
    const made = document.createElement("figure");
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = map.cells * CELL;
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Correlations in the Hessian of ${layer.name}`);
    const said = document.createElement("figcaption");
    said.textContent = `Hessian at a perfect fit, |H_ab| / √(H_aa H_bb), on a square-root scale from 0 (ground) to 1; ` +
      `groups in order: ${map.groups.join(", ")}`;
    made.append(canvas, said);
    host.append(made);
    const group = (cell) => map.groups[
      Math.max(0, map.boundaries.findLastIndex((boundary) => boundary <= cell + 1e-9))
    ] ?? map.groups.at(-1);
    const paint = () => {
      const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.fillStyle = style.getPropertyValue("--accent");
      bytes.forEach((shade, index) => {
        context.globalAlpha = shade / 255;
        context.fillRect(CELL * (index % map.cells), CELL * Math.floor(index / map.cells), CELL, CELL);
      });
      context.globalAlpha = 1;
      context.strokeStyle = style.getPropertyValue("--text");
      for (const boundary of map.boundaries.slice(1, -1)) {
        context.strokeRect(CELL * boundary, -1, 0, canvas.height + 2);
        context.strokeRect(-1, CELL * boundary, canvas.width + 2, 0);
      }
    };
    paint();
    document.addEventListener("memcurse-theme", paint);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const at = (value) => Math.min(map.cells - 1, Math.max(0, Math.floor(value * map.cells)));
      const row = at((event.clientY - box.top) / box.height), column = at((event.clientX - box.left) / box.width);
      const shade = bytes[row * map.cells + column];
      const value = ((shade / 255) ** 2).toFixed(2);
      show(`${group(row)} and ${group(column)}\ncorrelation ${value}`, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", hide);
  };

  const draw = (place) => {
    const host = place.querySelector(".charts");
    if (!place.open || host.childElementCount) return;
    const report = charts[Number(place.dataset.report)];
    const layer = report.layers[Number(place.dataset.layer)];
    if (layer.panels) {
      for (const panel of layer.panels) drawPanel(host, layer, panel, report);
      return;
    }
    if (layer.moves) {
      const moves = layer.moves.map(moved);
      if (!moves.length) return;
      drawMoves(host, layer, moves);
      drawMemories(host, layer, moves);
      return;
    }
    const points = layer.points.map(described);
    if (points.length) {
      drawDisk(host, layer, points);
      drawSensitivity(host, layer, points, report.curves);
    }
    drawHessian(host, layer);
  };
  for (const place of document.querySelectorAll("details.layer")) {
    place.addEventListener("toggle", () => draw(place));
    draw(place);
  }
  const openTarget = () => {
    const place = document.getElementById(location.hash.slice(1));
    if (place instanceof HTMLDetailsElement) place.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  const compare = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    return a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y) ? x - y : a.localeCompare(b);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      const key = (row) => row.cells[column].dataset.key;
      rows.sort((a, b) => (descending ? -1 : 1) * compare(key(a), key(b)));
      table.tBodies[0].append(...rows);
    }));
  }

  const theme = document.getElementById("theme"), root = document.documentElement;
  const dark = () => root.dataset.theme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { theme.textContent = dark() ? "light" : "dark"; theme.ariaLabel = `Show the page in ${theme.textContent} colours`; };
  theme.hidden = false;
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
    document.dispatchEvent(new Event("memcurse-theme"));
  });
  name();
})();
