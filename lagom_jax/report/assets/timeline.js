// The timeline: canvases that share one view, one above the other.

/** What of a step is drawn: its stretches, with slices by row. */
class Step {
  constructor(step, texts) {
    this.texts = texts;
    this.names = step.names;
    this.tasks = step.tasks.map((t) => ({
      name: texts[t[0]], kind: texts[t[1]], where: texts[t[2]], source: texts[t[3]],
      collective: t[4] === 1, alone: t[5], bound: texts[t[6]], bytes: t[7],
      traffic: t[8], channels: t[9], inFlight: t[10], link: texts[t[11]], share: t[12],
      count: t[13],
    }));
    this.most = 0;
    this.stretches = step.stretches.map((stretch) => this.decoded(stretch));
    this.seconds = this.stretches[0].seconds;
  }

  decoded(stretch) {
    const columns = ([track, task, deltas, lengths, cut]) => {
      let at = 0;
      return { track, task, begin: deltas.map((d) => (at += d)), length: lengths, cut };
    };
    const slices = columns(stretch.slices);
    const rows = new Map();
    const put = (row, n) => {
      if (!rows.has(row)) rows.set(row, []);
      rows.get(row).push(n);
    };
    slices.task.forEach((task, n) => {
      put(this.names[slices.track[n]], n);
      if (this.tasks[task].link) put(`link ${this.tasks[task].link}`, n);
    });
    let at = 0;
    const memory = { at: stretch.memory[0].map((d) => (at += d)), bytes: stretch.memory[1] };
    for (const bytes of memory.bytes) this.most = Math.max(this.most, bytes);
    const loops = stretch.loops.map(([name, trips, begin, end, rounds]) => ({
      name: this.texts[name], trips, begin, end,
      rounds: rounds.map(([times, iterations]) => ({ times, iterations })),
    }));
    return {
      seconds: stretch.seconds, slices, rows, memory, loops,
      stalls: columns(stretch.stalls), busy: null,
    };
  }

  /** Nanoseconds for which each row is busy in a stretch, loops included: in all, and by
      kind as `row|kind`. */
  busy(number) {
    const stretch = this.stretches[number];
    if (stretch.busy) return stretch.busy;
    const found = new Map();
    const add = (row, amount) => found.set(row, (found.get(row) || 0) + amount);
    for (const [row, members] of stretch.rows)
      for (const n of members) {
        add(row, stretch.slices.length[n]);
        add(`${row}|${kindOf(this.tasks[stretch.slices.task[n]])}`, stretch.slices.length[n]);
      }
    for (const length of stretch.stalls.length) add("stall", length);
    for (const loop of stretch.loops)
      for (const [row, amount] of this.busyLoop(loop)) add(row, amount);
    stretch.busy = found;
    return found;
  }

  busyLoop(loop) {
    const found = new Map();
    for (const { times, iterations } of loop.rounds)
      for (const iteration of iterations)
        for (const [row, amount] of this.busy(iteration))
          found.set(row, (found.get(row) || 0) + amount * times);
    return found;
  }

  /** The most memory in a loop. */
  mostOf(loop) {
    let most = 0;
    for (const { iterations } of loop.rounds)
      for (const iteration of iterations) {
        const stretch = this.stretches[iteration];
        for (const bytes of stretch.memory.bytes) most = Math.max(most, bytes);
        for (const inner of stretch.loops) most = Math.max(most, this.mostOf(inner));
      }
    return most;
  }

  /** The way to the first slice of a task of a name: loops around it, and its times. */
  find(name, number = 0, offset = 0) {
    const stretch = this.stretches[number];
    for (let n = 0; n < stretch.slices.task.length; n++)
      if (this.tasks[stretch.slices.task[n]].name === name)
        return {
          loops: [], begin: offset + stretch.slices.begin[n],
          length: stretch.slices.length[n], row: this.names[stretch.slices.track[n]],
        };
    for (let l = 0; l < stretch.loops.length; l++) {
      let at = offset + stretch.loops[l].begin;
      for (const { times, iterations } of stretch.loops[l].rounds) {
        for (const iteration of iterations) {
          const found = this.find(name, iteration, at);
          if (found) return { ...found, loops: [`${number}/${l}`, ...found.loops] };
          at += this.stretches[iteration].seconds;
        }
        at += (times - 1) *
          iterations.reduce((sum, i) => sum + this.stretches[i].seconds, 0);
      }
    }
    return null;
  }
}

const KINDS = {
  matmul: "matmul", convolution: "matmul", attention: "attention",
  "all-gather": "gather", "collective-broadcast": "gather",
  "reduce-scatter": "reduce", "all-reduce": "reduce",
  "all-to-all": "exchange", "ragged-all-to-all": "exchange",
  "collective-permute": "exchange", send: "exchange", recv: "exchange",
  copy: "data", transpose: "data", "host-copy": "data", gather: "data", scatter: "data",
};
const LEGEND = [
  ["matmul", "matmul, convolution"], ["attention", "attention"], ["other", "other kernels"],
  ["data", "copies"], ["gather", "all-gather"], ["reduce", "reduce-scatter, all-reduce"],
  ["exchange", "all-to-all, permute"], ["stall", "stands still, exposed"],
  ["memory", "memory"],
];
const kindOf = (task) => KINDS[task.kind] || "other";
const ROW = 26, AXIS = 22, MEMORY = 44;

/** One step on a canvas. */
class Chart {
  constructor(place, step, view, rows, title) {
    Object.assign(this, { place, step, view, rows, title });
    this.hits = [];
    this.canvas = element("canvas", { "aria-hidden": "true" });
    place.append(this.canvas);
    place.setAttribute("tabindex", "0");
    place.setAttribute("role", "application");
    place.setAttribute("aria-roledescription", "timeline");
    place.setAttribute("aria-label", `${title}: ${inSeconds(step.seconds)}, ` +
      `${rows.length} tracks. Arrow keys go from task to task, Enter opens a loop.`);
    this.height = AXIS + rows.reduce((sum, row) => sum + this.heightOf(row), 0);
    this.selected = null;
  }

  heightOf(row) { return row === "memory" ? MEMORY : ROW; }

  get gutter() { return this.width < 600 ? 74 : 124; }
  get scale() { return (this.width - this.gutter) / (this.view.end - this.view.begin); }
  x(ns) { return this.gutter + (ns - this.view.begin) * this.scale; }
  ns(x) { return this.view.begin + (x - this.gutter) / this.scale; }

  draw(colours, ratio = window.devicePixelRatio || 1) {
    this.width = this.place.clientWidth;
    if (!this.width) return;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    const to = this.canvas.getContext("2d");
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    to.fillStyle = colours.ground;
    to.fillRect(0, 0, this.width, this.height);
    this.to = to;
    this.colours = colours;
    this.hits = [];
    this.last = new Map();
    this.top = new Map();
    let y = AXIS;
    for (const row of this.rows) { this.top.set(row, y); y += this.heightOf(row); }
    to.save();
    to.beginPath();
    to.rect(this.gutter, 0, this.width - this.gutter, this.height);
    to.clip();
    to.font = "11px system-ui, sans-serif";
    to.textBaseline = "middle";
    this.axis();
    this.stretch(0, 0);
    this.outline();
    to.restore();
    this.labels();
  }

  axis() {
    const { to, colours, view } = this;
    const wanted = (view.end - view.begin) / Math.max(2, (this.width - this.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(Math.max(wanted, 1)));
    const tick = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted);
    to.strokeStyle = colours.line;
    to.fillStyle = colours.soft;
    to.textAlign = "left";
    for (let at = Math.ceil(view.begin / tick) * tick; at <= view.end; at += tick) {
      const x = Math.round(this.x(at)) + 0.5;
      to.beginPath(); to.moveTo(x, AXIS - 6); to.lineTo(x, this.height); to.stroke();
      to.fillText(inSeconds(Math.round(at)), x + 3, AXIS / 2);
    }
  }

  labels() {
    const { to, colours } = this;
    to.fillStyle = colours.ground;
    to.fillRect(0, 0, this.gutter, this.height);
    to.fillStyle = colours.text;
    to.font = "12px system-ui, sans-serif";
    to.textAlign = "left";
    to.textBaseline = "middle";
    for (const row of this.rows) {
      const middle = this.top.get(row) + this.heightOf(row) / 2;
      const name = row.startsWith("link ") ? row.slice(5) : row;
      to.fillText(this.fitting(name, this.gutter - 12), 6, middle - (row === "memory" ? 7 : 0));
      if (row === "memory") {
        to.fillStyle = colours.soft;
        to.fillText(`up to ${inBytes(this.view.most)}`, 6, middle + 8);
        to.fillStyle = colours.text;
      }
    }
  }

  fitting(text, room) {
    if (this.to.measureText(text).width <= room) return text;
    let most = Math.max(1, Math.floor((text.length * room) / this.to.measureText(text).width));
    while (most > 1 && this.to.measureText(`${text.slice(0, most)}…`).width > room) most--;
    return `${text.slice(0, most)}…`;
  }

  colourOf(task) { return this.colours[kindOf(task)]; }

  box(row, begin, end, colour, hit, { height = 1, label = "", faint = 1 } = {}) {
    const x0 = this.x(begin), x1 = this.x(end);
    if (x1 < this.gutter || x0 > this.width) return;
    const key = `${row}|${hit && hit.stall ? "s" : ""}`;
    const last = this.last.get(key) ?? -1;
    if (x1 - last < 0.4) return;
    this.last.set(key, x1);
    const room = this.heightOf(row) - 6, tall = Math.max(1, room * height);
    const y = this.top.get(row) + 3 + room - tall;
    const wide = Math.max(0.6, x1 - x0 - (x1 - x0 > 3 ? 0.6 : 0));
    this.to.globalAlpha = faint;
    this.to.fillStyle = colour;
    this.to.fillRect(x0, y, wide, tall);
    this.to.globalAlpha = 1;
    if (label && wide > 34 && height === 1) {
      this.to.fillStyle = hit && hit.loop ? this.colours.text : this.colours.ink;
      const from = Math.max(x0, this.gutter) + 4;
      this.to.textAlign = "left";
      this.to.fillText(this.fitting(label, x1 - from - 4), from, y + tall / 2 + 0.5);
    }
    if (hit) this.hits.push({ ...hit, row, x0, x1, begin, end });
  }

  hatch(begin, end, hit) {
    const x0 = Math.max(this.x(begin), this.gutter), x1 = Math.min(this.x(end), this.width);
    this.box("compute", begin, end, this.colours.stall, hit, { faint: 0.3 });
    const y = this.top.get("compute") + 3, tall = ROW - 6;
    if (x1 - x0 < 6) return;
    const { to } = this;
    to.save();
    to.beginPath(); to.rect(x0, y, x1 - x0, tall); to.clip();
    to.strokeStyle = this.colours.stall;
    to.lineWidth = 1.2;
    to.beginPath();
    for (let x = x0 - tall; x < x1; x += 6) { to.moveTo(x, y + tall); to.lineTo(x + tall, y); }
    to.stroke();
    to.restore();
  }

  stretch(number, offset) {
    const stretch = this.step.stretches[number], { view, step } = this;
    if (offset > view.end || offset + stretch.seconds < view.begin) return;
    // What is too close to be told apart is so within a stretch.
    const outside = this.last;
    this.last = new Map();
    for (const row of this.rows) {
      const members = stretch.rows.get(row);
      if (!members) continue;
      const { begin, length, task } = stretch.slices;
      let low = 0, high = members.length;
      while (low < high) {
        const middle = (low + high) >> 1, n = members[middle];
        if (offset + begin[n] + length[n] < view.begin) low = middle + 1; else high = middle;
      }
      for (; low < members.length; low++) {
        const n = members[low], from = offset + begin[n];
        if (from > view.end) break;
        const what = step.tasks[task[n]];
        const link = row.startsWith("link ");
        this.box(row, from, from + length[n], this.colourOf(what), { task: what },
          link ? { height: Math.max(0.05, what.share) } : { label: what.name });
      }
    }
    stretch.stalls.begin.forEach((begin, n) => {
      const from = offset + begin, until = from + stretch.stalls.length[n];
      if (until >= view.begin && from <= view.end)
        this.hatch(from, until, { stall: step.tasks[stretch.stalls.task[n]] });
    });
    this.curve(stretch, offset);
    stretch.loops.forEach((loop, n) => this.loop(loop, `${number}/${n}`, offset));
    this.last = outside;
  }

  curve(stretch, offset) {
    if (!this.top.has("memory") || !this.view.most) return;
    const { at, bytes } = stretch.memory, { view } = this;
    const floor = this.top.get("memory") + MEMORY - 3;
    const tall = (amount) => ((MEMORY - 8) * amount) / view.most;
    const holes = stretch.loops;
    this.to.fillStyle = this.colours.memory;
    for (let n = 0; n < at.length; n++) {
      let from = offset + at[n];
      const until = offset + (n + 1 < at.length ? at[n + 1] : stretch.seconds);
      if (until < view.begin || from > view.end) continue;
      // Loops draw their own.
      for (const loop of holes) {
        if (offset + loop.end <= from || offset + loop.begin >= until) continue;
        this.level(from, offset + loop.begin, tall(bytes[n]), floor);
        from = offset + loop.end;
      }
      this.level(from, until, tall(bytes[n]), floor);
      if (from < until)
        this.hits.push({ memory: bytes[n], row: "memory", begin: from, end: until,
          x0: this.x(from), x1: this.x(until) });
    }
  }

  level(from, until, tall, floor) {
    if (until > from)
      this.to.fillRect(this.x(from), floor - tall, Math.max(0.6, this.x(until) - this.x(from)), tall);
  }

  loop(loop, key, offset) {
    const { view, step } = this;
    const begin = offset + loop.begin, end = offset + loop.end;
    if (end < view.begin || begin > view.end) return;
    const open = view.open.has(key);
    const mark = open ? "▾" : "▸";
    this.box("loops", begin, end, this.colours.loop, { loop, key, open },
      { label: `${mark} ${loop.name} ×${loop.trips}` });
    if (!open || (end - begin) * this.scale < 8) {
      this.folded(loop, key, begin, end);
      return;
    }
    let at = begin;
    for (const { times, iterations } of loop.rounds) {
      const period = iterations.reduce((sum, i) => sum + step.stretches[i].seconds, 0);
      if (period * this.scale < 3) {
        this.folded(loop, key, at, at + period * times);
      } else {
        const first = Math.max(0, Math.floor((view.begin - at) / period));
        const last = Math.min(times, Math.ceil((view.end - at) / period));
        for (let round = first; round < last; round++) {
          let from = at + round * period;
          for (const iteration of iterations) {
            this.stretch(iteration, from);
            from += step.stretches[iteration].seconds;
          }
        }
      }
      at += period * times;
    }
  }

  /** A loop as a whole: how busy each row is in it. */
  folded(loop, key, begin, end) {
    const busy = this.step.busyLoop(loop), long = loop.end - loop.begin || 1;
    for (const row of this.rows) {
      if (row === "memory") {
        const most = this.step.mostOf(loop);
        this.to.fillStyle = this.colours.memory;
        const tall = this.view.most ? ((MEMORY - 8) * most) / this.view.most : 0;
        this.to.globalAlpha = 0.6;
        this.level(begin, end, tall, this.top.get("memory") + MEMORY - 3);
        this.to.globalAlpha = 1;
        this.hits.push({ memory: most, row, begin, end, x0: this.x(begin), x1: this.x(end) });
        continue;
      }
      const amount = busy.get(row);
      if (!amount || row === "loops") continue;
      const share = Math.min(1, amount / long);
      // That of the kind which takes most of it.
      const [kind] = LEGEND.map(([name]) => name).sort((one, other) =>
        (busy.get(`${row}|${other}`) || 0) - (busy.get(`${row}|${one}`) || 0));
      const colour = this.colours[kind];
      this.last.delete(`${row}|`);
      this.box(row, begin, end, colour, { loop, key, share, open: false },
        { height: share, faint: 0.65 });
      if (row === "compute" && busy.get("stall")) {
        const still = Math.min(1 - share, busy.get("stall") / long);
        this.to.fillStyle = this.colours.stall;
        this.to.globalAlpha = 0.8;
        const room = ROW - 6;
        this.to.fillRect(this.x(begin), this.top.get(row) + 3 + room * (1 - share - still),
          this.x(end) - this.x(begin), room * still);
        this.to.globalAlpha = 1;
      }
    }
  }

  outline() {
    const chosen = this.selected;
    if (!chosen || !this.top.has(chosen.row)) return;
    const { to } = this;
    to.strokeStyle = this.colours.text;
    to.lineWidth = 2;
    to.strokeRect(this.x(chosen.begin), this.top.get(chosen.row) + 2,
      Math.max(2, (chosen.end - chosen.begin) * this.scale), this.heightOf(chosen.row) - 4);
  }

  /** What is under a point. */
  at(x, y) {
    const row = this.rows.find((one) =>
      y >= this.top.get(one) && y < this.top.get(one) + this.heightOf(one));
    let found = null;
    for (const hit of this.hits)
      if (hit.row === row && x >= hit.x0 - 1 && x <= hit.x1 + 1) found = hit;
    return found;
  }
}

/** What is known of something on the timeline, in words. */
const describe = (hit, step) => {
  if (hit.loop) {
    const words = `${hit.loop.name}: ${hit.loop.trips} iterations, ` +
      `${inSeconds(hit.loop.end - hit.loop.begin)}, ` +
      (hit.open ? "unfolded" : "folded");
    return hit.share === undefined ? [words] :
      [words, `${hit.row} is busy for ${inPercent(hit.share, 1)} of it`];
  }
  if (hit.memory !== undefined)
    return [`memory: ${inBytes(hit.memory)} at ${inSeconds(Math.round(hit.begin))}`];
  const task = hit.stall || hit.task;
  if (hit.stall)
    return [`stands still for ${task.name}`, `${inSeconds(hit.end - hit.begin)} from ` +
      `${inSeconds(Math.round(hit.begin))}`, task.where, task.source];
  return [
    task.name, `${task.kind}, ${inSeconds(hit.end - hit.begin)} from ` +
      `${inSeconds(Math.round(hit.begin))}` +
      (task.alone ? `, alone ${inSeconds(task.alone)}` : ""),
    task.bytes ? inBytes(task.bytes) : "",
    task.bound ? `limited by ${task.bound}` : "",
    task.link ? `${inPercent(task.share, 1)} of ${task.link}` : "",
    task.channels ? `holds ${task.channels} SMs` : "",
    task.where, task.source,
  ];
};
