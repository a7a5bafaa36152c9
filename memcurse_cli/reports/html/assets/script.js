"use strict";
(() => {
  const embedded = (id) => JSON.parse(document.getElementById(id).textContent);
  const documents = [embedded("memcurse-report")].flat(), tip = document.getElementById("tip");
  const SIZE = 320, MARGIN = 38, TOP = 18, BASE = SIZE - MARGIN, log = Math.log10;
  // What a chart shows of a report: its JSON, and what was worked out for charts alone.
  const charts = embedded("memcurse-charts").map((chart, at) => ({
    ...documents[at], ...chart, layers: chart.layers.map((layer, index) => ({ ...documents[at].layers?.[index], ...layer })),
  }));

  // Numbers as the tables show them: three digits, short exponents.
  const number = (value) => {
    if (!Number.isFinite(value ?? NaN)) return "divergent";
    const size = Math.abs(value);
    if (value !== 0 && (size < 1e-3 || size >= 1e5)) {
      return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    }
    return size >= 100 || value === 0 ? String(Number(value.toPrecision(3))) : value.toPrecision(3);
  };
  const percent = (fraction) => `${number(100 * fraction)} %`;
  const counted = (count) => count.toLocaleString("en");
  const partOf = (shown, count) => shown < count ? `, ${counted(shown)} of ${counted(count)}` : "";

  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent?.append(made);
    return made;
  };
  const label = (svg, x, y, text, anchor = "middle") => {
    element("text", { x, y, "text-anchor": anchor }, svg).textContent = text;
  };
  const line = (svg, x1, x2, y1, y2, kind = "grid") => element("line", { x1, x2, y1, y2, class: kind }, svg);

  // One eigenvalue: where it stands and what a tooltip says of it.
  const described = ([re, im, kappa]) => {
    const modulus = Math.hypot(re, im), memory = modulus < 1 ? -1 / Math.log(modulus) : null;
    return {
      re, im, kappa, modulus, memory,
      text: `λ = ${re.toPrecision(4)} ${im < 0 ? "−" : "+"} ${Math.abs(im).toPrecision(4)}i\n` +
        `|λ| = ${modulus.toPrecision(6)}\nmemory = ${memory === null ? "never fades" : `${number(memory)} steps`}` +
        (kappa === undefined ? "" : `\nsensitivity κ(λ) = ${number(kappa)}`),
    };
  };

  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const place = (at, size, room) => `${Math.max(4, at + 14 + size > room ? at - 14 - size : at + 14)}px`;
    tip.style.left = place(x, box.width, innerWidth);
    tip.style.top = place(y, box.height, innerHeight);
  };
  const hide = () => { tip.hidden = true; };

  // The nearest stop answers to the pointer, and arrow keys walk through them; a click or Enter
  // follows its link. Where stops are columns, they answer at any height.
  const walk = (svg, stops, columns = false) => {
    const cursor = columns && element("line", { y1: 10, y2: BASE, class: "cursor", visibility: "hidden" }, svg);
    let rings = [], chosen = -1;
    const frame = () => {
      const box = svg.getBoundingClientRect();
      return [box.left, box.top, box.width / svg.viewBox.baseVal.width];
    };
    const leave = () => {
      for (const ring of rings) ring.remove();
      if (cursor) cursor.setAttribute("visibility", "hidden");
      hide();
    };
    const choose = (index, x, y) => {
      leave();
      chosen = index;
      const stop = stops[index], [left, top, unit] = frame();
      rings = stop.heights.map((cy) => element("circle", { cx: stop.x, cy, r: 5.5, class: "chosen" }, svg));
      if (cursor) for (const [key, value] of [["x1", stop.x], ["x2", stop.x], ["visibility", "visible"]]) cursor.setAttribute(key, value);
      show(stop.text, x ?? left + stop.x * unit, y ?? top + (stop.heights[0] ?? 10) * unit);
    };
    const follow = () => { if (stops[chosen]?.link) location.hash = stops[chosen].link; };
    svg.addEventListener("pointermove", (event) => {
      const [left, top, unit] = frame(), x = (event.clientX - left) / unit, y = (event.clientY - top) / unit;
      let best = -1, least = columns ? Infinity : 20 ** 2;
      stops.forEach((stop, index) => {
        const distance = (stop.x - x) ** 2 + (columns ? 0 : (stop.heights[0] - y) ** 2);
        if (distance < least) [best, least] = [index, distance];
      });
      if (best < 0) leave(); else choose(best, event.clientX, event.clientY);
    });
    for (const event of ["pointerleave", "blur"]) svg.addEventListener(event, leave);
    svg.addEventListener("click", follow);
    svg.addEventListener("keydown", (event) => {
      const end = stops.length - 1, step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (event.key === "Enter") follow();
      const to = event.key === "Home" ? 0 : event.key === "End" ? end
        : step ? (chosen < 0 && step < 0 ? end : (chosen + step + end + 1) % (end + 1)) : -1;
      if (to < 0 || end < 0) return;
      event.preventDefault();
      choose(to);
    });
  };

  const figure = (host, said, caption, width = SIZE) => {
    const made = document.createElement("figure"), below = document.createElement("figcaption");
    made.className = width > SIZE ? "wide" : "";
    below.textContent = caption;
    const svg = element("svg", {
      viewBox: `0 0 ${width} ${SIZE}`, class: "chart", role: "img", tabindex: 0, "aria-label": `${said}. Arrow keys walk through it.`,
    });
    made.append(svg, below);
    host.append(made);
    return svg;
  };

  // Logarithmic axes between two exponents of 10: where a value stands on each.
  const tick = (value) => value >= 1e4 || value < 1e-3
    ? value.toExponential().replace("e+", "e") : String(Number(value.toPrecision(3)));
  const ticks = (low, high) => {
    const decades = Math.floor(high) - Math.ceil(low) + 1, stride = Math.ceil(decades / 7) || 1;
    const parts = decades >= 3 ? [1] : decades >= 2 ? [1, 3] : [1, 1.5, 2, 3, 5, 7], found = [];
    for (let decade = Math.floor(low); decade <= high; decade += stride) {
      for (const part of parts) found.push(Number(`${part}e${decade}`));
    }
    return found.filter((value) => log(value) >= low && log(value) <= high && tick(value).length < 6);
  };
  const upwards = (svg, low, high, title = "", base = BASE) => {
    const up = (value) => base - (base - TOP) * (log(value) - low) / (high - low), end = svg.viewBox.baseVal.width - 10;
    for (const value of ticks(low, high)) {
      line(svg, MARGIN, end, up(value), up(value));
      label(svg, MARGIN - 4, up(value) + 4, tick(value), "end");
    }
    label(svg, 4, 11, title, "start");
    return up;
  };
  const across = (svg, low, high, title) => {
    const along = (value) => MARGIN + (BASE - 10) * (log(value) - low) / (high - low);
    for (const value of ticks(low, high)) {
      line(svg, along(value), along(value), TOP, BASE);
      label(svg, along(value), BASE + 14, tick(value), log(value) > high - 0.05 ? "end" : undefined);
    }
    label(svg, (MARGIN + SIZE) / 2, SIZE - 6, title);
    return along;
  };
  const dot = (svg, [x, y], { modulus, text }) => {
    element("circle", { cx: x, cy: y, r: 3, class: modulus < 1 ? "dot" : "dot out" }, svg);
    return { x, heights: [y], text };
  };

  // The plane around the unit circle: where an eigenvalue stands.
  const plane = (svg, points) => {
    const middle = SIZE / 2, scale = (middle - 8) / (1.08 * Math.max(1, ...points.map((point) => point.modulus)));
    line(svg, 0, SIZE, middle, middle);
    line(svg, middle, middle, 0, SIZE);
    element("circle", { cx: middle, cy: middle, r: scale, class: "axis" }, svg);
    return ({ re, im }) => [middle + scale * re, middle - scale * im];
  };

  // Where |λ| nears 1 the disk shows no difference: beside it its rim is unrolled.
  const drawSpectrum = (host, { name, eigenvalues: { count } }, points) => {
    if (!points.length) return;
    const disk = figure(host, `Eigenvalues of ${name} in the unit disk`, `Eigenvalues in the unit disk${partOf(points.length, count)}`);
    const place = plane(disk, points), shown = points.filter((point) => point.modulus > 0.9);
    walk(disk, points.map((point) => dot(disk, place(point), point)));
    if (!shown.length) return;
    const rim = figure(
      host, `The rim of the unit disk of ${name}`,
      `Its rim unrolled: memory in steps of |λ| > 0.9${partOf(shown.length, points.length)}; the uppermost never fade`,
    );
    const known = shown.filter((point) => point.memory).map((point) => log(point.memory));
    const up = upwards(rim, Math.min(1, ...known) - 0.1, Math.max(2, ...known) + 0.1);
    const along = (angle) => MARGIN + (BASE - 10) * (angle / Math.PI + 1) / 2;
    for (const [said, angle] of [["−π", -Math.PI], ["0", 0], ["π", Math.PI]]) label(rim, along(angle), BASE + 14, said);
    label(rim, along(0), SIZE - 6, "angle of λ");
    walk(rim, shown.map((point) => dot(rim, [along(Math.atan2(point.im, point.re)), point.memory ? up(point.memory) : 8], point)));
  };

  // The longest memory of each layer by its place in depth, or every memory of the only one.
  const drawMemory = (host, { depth, input: { horizon, horizon_source }, layers }, place) => {
    const [{ name, eigenvalues: { count, unstable, time_constant_histogram: histogram } }] = layers, single = layers.length === 1;
    if (single && !histogram.length) return;
    const beside = host.clientWidth - 2 * SIZE - 32, width = Math.min(640, beside > SIZE ? beside : host.clientWidth);
    const room = width - MARGIN - 10;
    const svg = figure(
      host, single ? `Memories of ${name}` : "The longest memory of each layer by depth. Enter opens a layer",
      single ? "Eigenvalues by their memory in steps"
        : "The longest memory of each layer in steps, by depth; a click opens it. " +
          (depth.some(([, index]) => index === null) ? "Grey: attention. " : "") + "Red never fades", width,
    );
    const fullest = Math.max(1, ...histogram, unstable);
    const known = layers.map((layer) => layer.memory).filter((memory) => memory > 0);
    const decades = Math.ceil(log(Math.max(10, horizon ?? 1, ...known)) + 0.05);
    const bars = single ? [...histogram, unstable].map((held, index) => ({
      share: held / fullest, kind: index === histogram.length ? "never" : "",
      text: `${counted(held)} of ${counted(count)}: ` + (index === histogram.length ? "never fade"
        : index ? `${number(10 ** ((index - 1) / 2))} steps or more` : "less than a step"),
    })) : depth.map(([at, index]) => {
      if (index === null) return { at, share: 1, kind: "attention", text: `layer ${at}: attention` };
      const { name: layer, memory, verdict } = layers[index], never = memory === null;
      return {
        at, share: never ? 1 : Math.max(0.01, log(Math.max(memory, 1)) / decades), kind: never ? "never" : "",
        text: `${layer}\nmemory: ${never ? "never fades" : `${number(memory)} steps`}\n${verdict.replace("_", " ")}`,
        link: `r${place}-l${index}`,
      };
    });
    const step = room / bars.length, thick = Math.min(48, 0.8 * step), up = single ? null : upwards(svg, 0, decades);
    for (const [index, bar] of bars.entries()) {
      const height = bar.share * (BASE - TOP), x = MARGIN + step * (index + 0.5);
      element("rect", { x: x - thick / 2, y: BASE - height, width: thick, height, class: `column ${bar.kind}` }, svg);
      Object.assign(bar, { x, heights: [BASE - height] });
      if (!single && index % Math.ceil(26 / step) === 0) label(svg, x, BASE + 14, bar.at);
    }
    line(svg, MARGIN, width - 10, BASE, BASE, "axis");
    label(svg, MARGIN + room / 2, SIZE - 6, single ? "memory, steps" : "layer");
    const edge = (memory) => MARGIN + step * (1 + 2 * log(memory)), said = `horizon ${counted(horizon ?? 0)}${horizon_source === "assumed" ? ", assumed" : ""}`;
    if (single) {
      for (const value of [1, 100, 1e4, 1e6]) label(svg, edge(value), BASE + 14, tick(value));
      label(svg, bars.at(-1).x, BASE + 14, "never");
    }
    if (horizon) {
      const x = single ? edge(horizon) : MARGIN, y = single ? TOP : up(horizon);
      line(svg, x, single ? x : width - 10, y, single ? BASE : y, "horizon");
      label(svg, single ? x : width - 10, 11, said, single ? "middle" : "end");
    }
    walk(svg, bars, true);
  };

  const drawHero = (host, report, place) => {
    const { layers } = report, most = Math.ceil(4000 / layers.length);
    if (!layers.length) return;
    drawMemory(host, report, place);
    const points = layers.flatMap((layer) => layer.points.slice(-most).map(described)).sort((a, b) => a.modulus - b.modulus);
    const count = layers.reduce((sum, layer) => sum + layer.eigenvalues.count, 0);
    drawSpectrum(host, layers.length > 1 ? { name: "all layers", eigenvalues: { count } } : layers[0], points);
  };

  // Matched pairs of eigenvalues; near the unit circle, where moves are too short, by their memories.
  const drawMoves = (host, layer) => {
    const moves = layer.moves.map(([re, im, reAfter, imAfter]) => {
      const before = described([re, im]), after = described([reAfter, imAfter]), rows = after.text.split("\n");
      return { before, after, text: before.text.split("\n").map((row, i) => `${row} → ${rows[i].split(" = ")[1]}`).join("\n") };
    });
    if (!moves.length) return;
    const svg = figure(
      host, `How the eigenvalues of ${layer.name} moved`,
      `Eigenvalues from before (rings) to after (dots), conjugates as one${partOf(moves.length, layer.count)}`,
    );
    const place = plane(svg, moves.flatMap(({ before, after }) => [before, after]));
    walk(svg, moves.map(({ before, after, text }) => {
      const [x, y] = place(before), to = place(after);
      line(svg, x, to[0], y, to[1], "move");
      element("circle", { cx: x, cy: y, r: 3, class: "ring" }, svg);
      return dot(svg, to, { ...after, text });
    }));
    const shown = moves.filter(({ before, after }) => before.memory > 0 && after.memory > 0), left = moves.length - shown.length;
    if (!shown.length) return;
    const logs = shown.flatMap(({ before, after }) => [log(before.memory), log(after.memory)]);
    const [low, high] = [Math.min(...logs) - 0.1, Math.max(...logs) + 0.1];
    const plot = figure(
      host, `Memories in ${layer.name} before and after`,
      `Memory in steps, before and after: those above the dashed line moved outward${left ? `; ${left} with |λ| ≥ 1 or λ = 0 not drawn` : ""}`,
    );
    const along = across(plot, low, high, "before"), up = upwards(plot, low, high, "after");
    line(plot, MARGIN, SIZE - 10, BASE, TOP, "curve endless");
    walk(plot, shown.map(({ before, after, text }) => dot(plot, [along(before.memory), up(after.memory)], { modulus: 0, text })));
  };

  const drawSensitivity = (host, layer, curves) => {
    const shown = layer.points.map(described).filter((point) => point.memory > 0 && point.kappa > 0);
    const memory = shown.map((point) => log(point.memory));
    const left = Math.floor(Math.min(0, ...memory)), right = Math.ceil(Math.max(2, ...memory) + 0.05);
    const lines = curves.map((curve) => ({
      horizon: curve.horizon,
      points: curve.time_constant.map((at, index) => [at, curve.relative_sensitivity[index]])
        .filter(([at, kappa]) => kappa > 0 && log(at) >= left && log(at) <= right),
    })).filter(({ points }) => points.length);
    if (!shown.length || !lines.length) return;
    const heights = [...shown.map((point) => point.kappa), ...lines.flatMap(({ points }) => points.map(([, kappa]) => kappa))].map(log);
    const svg = figure(
      host, `Sensitivity against memory in ${layer.name}`,
      "Sensitivity κ(λ) against memory; behind it the theory of a real eigenvalue: " +
        lines.map(({ horizon }) => horizon === null ? "dashed, infinite sequence" : `solid, ${horizon} steps`).join("; "),
    );
    const along = across(svg, left, right, "memory, steps");
    const up = upwards(svg, Math.floor(Math.min(...heights)), Math.ceil(Math.max(...heights)), "κ(λ)");
    for (const { horizon, points } of lines) {
      const path = points.map(([at, kappa]) => `${along(at).toFixed(1)},${up(kappa).toFixed(1)}`);
      element("polyline", { points: path.join(" "), class: horizon === null ? "curve endless" : "curve" }, svg);
    }
    walk(svg, shown.map((point) => dot(svg, [along(point.memory), up(point.kappa)], point)));
  };

  const drawHessian = (host, { name, hessian }) => {
    if (!hessian) return;
    const { boundaries, cells, groups, shades } = hessian, size = SIZE / cells;
    const group = (cell) => groups[Math.max(0, boundaries.findLastIndex((boundary) => boundary <= cell + 1e-9))] ?? groups.at(-1);
    const svg = figure(
      host, `Correlations in the Hessian of ${name}`,
      `Hessian at a perfect fit, |H_ab| / √(H_aa H_bb), on a square-root scale from 0 (ground) to 1; groups in order: ${groups.join(", ")}`,
    );
    const stops = Array.from(atob(shades), (letter, index) => {
      const shade = letter.charCodeAt(0) / 255, column = index % cells, row = Math.floor(index / cells);
      element("rect", { x: size * column, y: size * row, width: size, height: size, class: "cell", "fill-opacity": shade }, svg);
      const text = `${group(row)} and ${group(column)}\ncorrelation ${(shade ** 2).toFixed(2)}`;
      return { x: size * (column + 0.5), heights: [size * (row + 0.5)], text };
    });
    for (const boundary of boundaries.slice(1, -1)) {
      line(svg, size * boundary, size * boundary, 0, SIZE, "curve");
      line(svg, 0, SIZE, size * boundary, size * boundary, "curve");
    }
    walk(svg, stops);
  };

  // Curves over the steps of a run, on a logarithmic scale, above a band of verdicts.
  const drawPanel = (host, layer, panel, { steps, verdicts }) => {
    const curves = panel.curves.filter((curve) => curve.values.some((value) => value !== null));
    const known = curves.flatMap((curve) => curve.values).filter((value) => typeof value === "number").map(log);
    if (!curves.length) return;
    const low = known.length ? Math.min(...known) - 0.05 : 0, high = known.length ? Math.max(...known, low + 0.3) + 0.05 : 1;
    const first = steps[0], last = steps.at(-1), room = BASE - 10;
    const along = (step) => MARGIN + room * (last > first ? (step - first) / (last - first) : 0.5);
    const svg = figure(host, `${panel.title} of ${layer.name} over the steps of the run`, `${panel.title}${curves.length > 1 ? ": " : ""}`);
    const up = upwards(svg, low, high, "", BASE - 12);
    label(svg, along(first), BASE + 14, first, last > first ? "start" : "middle");
    if (last > first) label(svg, along(last), BASE + 14, last, "end");
    label(svg, MARGIN + room / 2, SIZE - 6, "step");
    const edge = (index) => along((steps[index] + steps[index + 1]) / 2);
    const stops = steps.map((step, index) => {
      const verdict = verdicts[index], height = { ok: 3, not_judged: 3, watch: 6, cursed: 10, error: 0 }[verdict];
      const x = index ? edge(index - 1) : MARGIN, width = (index + 1 < steps.length ? edge(index) : SIZE - 10) - x;
      element("rect", { x, y: BASE - height, width, height, class: `band ${verdict}` }, svg);
      return { x: along(step), heights: [], text: `step ${step}: ${verdict.replace("_", " ")}` };
    });
    curves.forEach((curve, place) => {
      let path = "", pen = "M";
      curve.values.forEach((value, index) => {
        const stop = stops[index], { x } = stop, diverges = typeof value === "string", y = diverges ? 10 : up(value);
        if (value !== null && !diverges) path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
        pen = value === null || diverges ? "M" : "L";
        if (value === null) return;
        if (diverges) element("path", { d: `M${x - 3},13 h6 l-3,-6 z`, class: "dot out" }, svg);
        else if (steps.length <= 60) element("circle", { cx: x, cy: y, r: 2, class: `mark c${place % 6}` }, svg);
        stop.heights.push(y);
        stop.text += `\n${curve.name} = ${diverges ? value : number(value)}`;
      });
      element("path", { d: path, class: `curve c${place % 6}` }, svg);
      if (curves.length < 2) return;
      const key = document.createElement("span"), sample = element("svg", { viewBox: "0 0 24 8", "aria-hidden": true });
      key.className = "key";
      line(sample, 0, 24, 4, 4, `curve c${place % 6}`);
      key.append(sample, ` ${curve.name}`);
      svg.nextElementSibling.append(" ", key);
    });
    walk(svg, stops, true);
  };

  const draw = (host) => {
    const { report: at, layer: place } = (host.closest("[data-layer]") ?? host.closest("[data-report]")).dataset;
    const report = charts[at], layer = report.layers[place], kind = host.dataset.draw;
    if (kind === "hero") drawHero(host, report, at);
    else if (kind === "disk") drawSpectrum(host, layer, layer.points.map(described));
    else if (layer.panels) for (const panel of layer.panels) drawPanel(host, layer, panel, report);
    else if (layer.moves) drawMoves(host, layer);
    else if (kind === "theory") {
      drawSensitivity(host, layer, report.curves);
      drawHessian(host, layer);
    } else {
      const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
      host.textContent = JSON.stringify(documents[at].layers[place], null, 1).replace(/[^\x20-\x7e\n]/g, escaped);
    }
  };
  const drawOpen = () => {
    for (const host of document.querySelectorAll(".charts:empty")) if (host.checkVisibility()) draw(host);
  };
  document.addEventListener("toggle", drawOpen, true);
  drawOpen();
  const openTarget = () => {
    const place = document.getElementById(location.hash.slice(1));
    for (let at = place; at; at = at.parentElement) if (at instanceof HTMLDetailsElement) at.open = true;
    place?.scrollIntoView();
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  // What a head means is told to the pointer and to the keyboard.
  for (const head of document.querySelectorAll("[data-tip]")) {
    const tell = () => { const box = head.getBoundingClientRect(); show(head.dataset.tip, box.left, box.bottom); };
    for (const event of ["pointerenter", "focus"]) head.addEventListener(event, tell);
    for (const event of ["pointerleave", "blur"]) head.addEventListener(event, hide);
  }

  for (const button of document.querySelectorAll("button.copy")) {
    const code = button.previousElementSibling;
    button.hidden = false;
    button.ariaLabel = `Copy ${code.textContent}`;
    button.addEventListener("click", async () => {
      getSelection().selectAllChildren(code);
      try { await navigator.clipboard.writeText(code.textContent); } catch { document.execCommand("copy"); }
      button.textContent = "copied";
    });
  }

  // Step effects grow with the rate and usable rates do not know it, so another one can be judged.
  const ORDER = ["ok", "not_judged", "watch", "cursed"];
  const wear = (badge, verdict) => { badge.className = `badge ${verdict}`; badge.textContent = verdict.replace("_", " "); };
  for (const tried of document.querySelectorAll(".try")) {
    const [slider, said, back] = tried.querySelectorAll("input, output, button");
    const section = tried.closest(".report"), { rate: yours, findings, skipped, layers } = charts[section.dataset.report];
    const floor = findings.some(({ severity }) => severity !== "info") ? "watch" : skipped?.length ? "not_judged" : "ok";
    const [mark, text] = section.querySelectorAll(".bar .yours");
    const { left, right } = slider.dataset, start = slider.value, badge = document.createElement("span");
    const judge = (rate) => {
      const factor = rate / yours, along = `${100 * (log(rate) - left) / (right - left)}%`;
      const verdicts = layers.map(({ learning_rate, parameters, usable_rate, verdict }) => {
        if (verdict === "not_judged" || !parameters.length || !usable_rate?.rate) return verdict;
        const stepped = learning_rate * factor;
        return stepped > usable_rate.high ? "cursed" : stepped >= usable_rate.low ? "watch" : "ok";
      });
      for (const layer of section.querySelectorAll("[data-of]")) wear(layer, verdicts[layer.dataset.of]);
      for (const cell of section.querySelectorAll("td.scales")) {
        const effect = Number(cell.dataset.key);
        if (effect >= 0 && effect < 1e308) cell.textContent = percent(effect * factor);
      }
      for (const [key, one] of [["x1", mark], ["x2", mark], ["x", text]]) one.setAttribute(key, along);
      text.textContent = `${factor === 1 ? "yours" : "tried"} ${number(rate)}`;
      wear(badge, ORDER[Math.max(...[...verdicts, floor].map((verdict) => ORDER.indexOf(verdict)))]);
      slider.ariaValueText = `${number(rate)}, ${badge.textContent}`;
      back.hidden = factor === 1;
      said.replaceChildren(...factor === 1 ? ["Your rate."] : [`At ${number(rate)} `, badge, ", step effects below are scaled; words and findings stay at yours. "]);
    };
    tried.hidden = false;
    slider.addEventListener("input", () => judge(10 ** (Number(left) + (right - left) * slider.value / 100)));
    back.addEventListener("click", () => { slider.value = start; judge(yours); slider.focus(); });
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells], [body] = table.tBodies;
    heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key;
      const compare = (a, b) => a && b && !Number.isNaN(a - b) ? a - b : a.localeCompare(b);
      body.append(...[...body.rows].sort((a, b) => (descending ? -1 : 1) * compare(key(a), key(b))));
    }));
  }

  const theme = document.getElementById("theme"), root = document.documentElement;
  const dark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { theme.textContent = dark() ? "light" : "dark"; theme.ariaLabel = `Show the page in ${theme.textContent} colours`; };
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
})();
