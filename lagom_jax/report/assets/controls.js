// What the user does with the timelines.

class Timelines {
  constructor(data) {
    this.steps = data.steps.map((step) => step && new Step(step, data.texts));
    const there = this.steps.filter(Boolean);
    this.long = Math.max(...there.map((step) => step.seconds));
    this.view = {
      begin: 0, end: this.long, open: new Set(),
      most: Math.max(...there.map((step) => step.most)),
    };
    const places = [...document.querySelectorAll(".canvas")];
    this.charts = there.map((step, n) => {
      const caption = places[n].parentElement.querySelector("figcaption");
      const title = caption ? `Timeline ${caption.textContent.toLowerCase()}` : "Timeline";
      return new Chart(places[n], step, this.view, this.rowsOf(there), title);
    });
    this.charts.forEach((chart) => this.listen(chart));
    this.tools();
    this.legend();
    this.pending = false;
    new ResizeObserver(() => this.redraw()).observe(places[0]);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.draw();
  }

  /** The rows that any step has, in the order of the streams. */
  rowsOf(steps) {
    const used = new Set(), links = new Set();
    let loops = false;
    for (const step of steps)
      for (const stretch of step.stretches) {
        loops = loops || stretch.loops.length > 0;
        for (const row of stretch.rows.keys())
          (row.startsWith("link ") ? links : used).add(row);
      }
    const names = [...new Set(steps.flatMap((step) => step.names))];
    return [
      ...(loops ? ["loops"] : []), "compute",
      ...names.filter((name) => name !== "compute" && used.has(name)), ...links,
      ...(this.view.most ? ["memory"] : []),
    ];
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const found = {};
    for (const name of ["ground", "line", "text", "soft", "ink", "matmul", "attention",
      "other", "data", "gather", "reduce", "exchange", "stall", "memory", "loop"])
      found[name] = style.getPropertyValue(`--${name}`).trim();
    return found;
  }

  draw(ratio) {
    const colours = this.colours();
    for (const chart of this.charts) chart.draw(colours, ratio);
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.draw(); });
  }

  show(begin, end) {
    const least = 50, long = this.long * 1.02;
    const wide = Math.min(Math.max(end - begin, least), long);
    const from = Math.min(Math.max(begin, -0.01 * this.long), long - wide);
    this.view.begin = from;
    this.view.end = from + wide;
    this.redraw();
  }

  all() { this.show(0, this.long); }

  zoom(times, around = (this.view.begin + this.view.end) / 2) {
    const { begin, end } = this.view;
    this.show(around - (around - begin) / times, around + (end - around) / times);
  }

  move(share) {
    const wide = this.view.end - this.view.begin;
    this.show(this.view.begin + share * wide, this.view.end + share * wide);
  }

  fold(key, open = !this.view.open.has(key)) {
    if (open) this.view.open.add(key); else this.view.open.delete(key);
    this.draw();
  }

  foldAll(open) {
    this.view.open.clear();
    if (open)
      for (const step of this.steps.filter(Boolean))
        step.stretches.forEach((stretch, number) =>
          stretch.loops.forEach((_, n) => this.view.open.add(`${number}/${n}`)));
    this.draw();
    say(open ? "All loops are unfolded" : "All loops are folded");
  }

  detail(hit, step) {
    const [head, ...rest] = describe(hit, step);
    const shown = document.getElementById("detail");
    shown.replaceChildren(element("b", {}, head));
    const words = rest.filter(Boolean).join(" · ");
    if (words) shown.append(document.createElement("br"), words);
  }

  choose(chart, hit) {
    for (const one of this.charts) one.selected = null;
    chart.selected = hit;
    if (hit) this.detail(hit, chart.step);
    this.redraw();
  }

  listen(chart) {
    const { place } = chart;
    let drag = null;
    place.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, begin: this.view.begin, end: this.view.end, moved: false };
      place.setPointerCapture(event.pointerId);
    });
    place.addEventListener("pointermove", (event) => {
      const box = place.getBoundingClientRect();
      if (drag && Math.abs(event.clientX - drag.x) > 3) {
        drag.moved = true;
        place.classList.add("dragged");
        const by = (drag.x - event.clientX) / chart.scale;
        this.show(drag.begin + by, drag.end + by);
      } else if (!drag && !chart.selected) {
        const hit = chart.at(event.clientX - box.left, event.clientY - box.top);
        if (hit) this.detail(hit, chart.step);
      }
    });
    const over = (event) => {
      const clicked = drag && !drag.moved && event.type === "pointerup";
      drag = null;
      place.classList.remove("dragged");
      if (!clicked) return;
      const box = place.getBoundingClientRect();
      const hit = chart.at(event.clientX - box.left, event.clientY - box.top);
      this.choose(chart, hit);
      if (hit && hit.loop) this.fold(hit.key);
    };
    place.addEventListener("pointerup", over);
    place.addEventListener("pointercancel", over);
    place.addEventListener("dblclick", (event) => {
      const box = place.getBoundingClientRect();
      this.zoom(4, chart.ns(event.clientX - box.left));
    });
    place.addEventListener("wheel", (event) => {
      const box = place.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 300), chart.ns(event.clientX - box.left));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        this.move((event.deltaX || event.deltaY) / 1000);
      }
    }, { passive: false });
    place.addEventListener("keydown", (event) => this.key(chart, event));
  }

  key(chart, event) {
    if (event.altKey || event.metaKey || (event.ctrlKey && event.key !== "+")) return;
    const chosen = chart.selected;
    const keys = {
      "+": () => this.zoom(2, chosen ? (chosen.begin + chosen.end) / 2 : undefined),
      "=": () => this.zoom(2, chosen ? (chosen.begin + chosen.end) / 2 : undefined),
      "-": () => this.zoom(0.5), 0: () => this.all(), Home: () => this.all(),
      PageUp: () => this.move(-0.8), PageDown: () => this.move(0.8),
      ArrowRight: () => this.step(chart, 1), ArrowLeft: () => this.step(chart, -1),
      ArrowDown: () => this.row(chart, 1), ArrowUp: () => this.row(chart, -1),
      Enter: () => { if (chosen && chosen.loop) this.toggle(chart, chosen); },
      " ": () => { if (chosen && chosen.loop) this.toggle(chart, chosen); },
      z: () => { if (chosen) this.around(chosen); },
      Escape: () => this.choose(chart, null),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  toggle(chart, chosen) {
    this.fold(chosen.key);
    this.choose(chart, { ...chosen, open: this.view.open.has(chosen.key) });
  }

  around(hit) {
    const wide = Math.max(hit.end - hit.begin, 100);
    this.show(hit.begin - wide, hit.end + wide);
  }

  /** To the next task of a row. */
  step(chart, by) {
    const row = chart.selected ? chart.selected.row : chart.rows[0];
    const next = () => {
      const there = chart.hits.filter((hit) => hit.row === row)
        .sort((one, other) => one.begin - other.begin);
      if (!chart.selected) return there[0];
      const at = chart.selected.begin;
      return by > 0 ? there.find((hit) => hit.begin > at + 0.5)
        : there.findLast((hit) => hit.begin < at - 0.5);
    };
    let found = next();
    if (!found && (by > 0 ? this.view.end < this.long : this.view.begin > 0)) {
      this.move(by * 0.7);
      this.draw();
      found = next();
    }
    if (found) this.choose(chart, found);
  }

  /** To the task of another row that is nearest. */
  row(chart, by) {
    const middle = chart.selected
      ? (chart.selected.begin + chart.selected.end) / 2 : this.view.begin;
    let place = chart.selected ? chart.rows.indexOf(chart.selected.row) + by : 0;
    for (; place >= 0 && place < chart.rows.length; place += by) {
      const far = (hit) => Math.max(hit.begin - middle, middle - hit.end, 0);
      const [first] = chart.hits.filter((hit) => hit.row === chart.rows[place])
        .sort((one, other) => far(one) - far(other));
      if (first) { this.choose(chart, first); return; }
    }
  }

  /** The name in the schedule of what the report calls so. */
  nameOf(name, number) {
    const found = this.charts[number].step.tasks.find((task) => task.collective &&
      (task.name === name || task.name.replace("-start", "") === name ||
        `${task.kind} ${task.name.replace("-start", "")}` === name));
    return found ? found.name : name;
  }

  /** Goes to the first run of a task in one of the steps. */
  go(name, number) {
    const chart = this.charts[number];
    const found = chart.step.find(name);
    if (!found) { say(`${name} is not on the timeline one by one`); return; }
    for (const key of found.loops) this.view.open.add(key);
    this.show(found.begin - 2 * found.length, found.begin + 3 * found.length);
    this.draw();
    const hit = chart.hits.find((one) => one.task && one.task.name === name);
    if (hit) this.choose(chart, hit);
    chart.place.scrollIntoView({ block: "center" });
    chart.place.focus({ preventScroll: true });
  }

  tools() {
    const tools = document.getElementById("tools");
    const button = (words, label, action) =>
      element("button", { type: "button", "aria-label": label, onclick: action }, words);
    tools.append(
      button("−", "Zoom out", () => this.zoom(0.5)),
      button("+", "Zoom in", () => this.zoom(2)),
      button("←", "Earlier", () => this.move(-0.4)),
      button("→", "Later", () => this.move(0.4)),
      button("All", "Show the whole step", () => this.all()),
      button("Unfold loops", "Unfold all loops", () => this.foldAll(true)),
      button("Fold loops", "Fold all loops", () => this.foldAll(false)),
    );
  }

  legend() {
    const legend = document.getElementById("legend");
    for (const [name, words] of LEGEND) {
      const colour = element("i");
      colour.style.background = `var(--${name})`;
      legend.append(element("span", {}, colour, words));
    }
  }
}
