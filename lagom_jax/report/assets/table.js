// The table of collectives: sorted, filtered, those alike in one row.

const PAGE = 50;
const COLUMNS = [
  ["name", "collective", ""], ["verdict", "verdict", ""], ["bytes", "bytes", "number"],
  ["members", "over", "number"], ["runs", "runs", "number"], ["seconds", "time", "number"],
  ["exposed", "exposed", "number"], ["use", "link use", "number"], ["place", "where", ""],
];

/** A text as it is looked for: as it is displayed, whatever its case. */
const sought = (text) => text.replace(/\s+/g, " ").trim().toLowerCase();

class Sites {
  constructor(data, timelines) {
    this.texts = data.texts;
    this.timelines = timelines;
    this.reports = data.collectives;
    Object.assign(this, { sort: "exposed", down: true, page: 0, grouped: true });
    this.words = "";
    this.kind = "";
    this.fate = "";
    this.opened = new Set();
    this.take(this.reports.length - 1);
    this.build();
    this.fill();
  }

  /** Lists the collectives of a step: as it is, or with the plan. */
  take(number) {
    const { step, left, rows, groups } = this.reports[number];
    Object.assign(this, { number, step, left });
    this.rows = rows.map((row) => this.row(row));
    this.groups = groups.map((group) => {
      const [place, among, count, runs, seconds, exposed, slowed, first] = group;
      return {
        ...this.row(first), place: this.texts[place],
        among, count, runs, seconds, exposed, slowed,
      };
    });
  }

  row(r) {
    const t = this.texts;
    const found = {
      name: t[r[0]], kind: t[r[1]], verdict: t[r[2]], why: t[r[3]], place: t[r[4]],
      source: t[r[5]], op: t[r[6]], bytes: r[7], members: t[r[8]], runs: r[9],
      seconds: r[10], exposed: r[11], bound: t[r[12]], use: r[13], operands: r[14],
      sync: r[15] === 1, slowed: r[16], count: 1,
    };
    found.sought = sought([found.name, found.kind, found.verdict, found.place, found.op]
      .join(" "));
    return found;
  }

  build() {
    const place = document.getElementById("table");
    const kinds = [...new Set(this.reports.flatMap(
      ({ rows }) => rows.map((row) => this.texts[row[1]])))].sort();
    const again = (change) => { change(); this.page = 0; this.fill(); };
    const select = (label, options, change) => element("label", {}, `${label} `,
      element("select", { onchange: (event) => again(() => change(event.target.value)) },
        ...options.map(([value, words]) => element("option", { value }, words))));
    this.count = element("p", { role: "status", class: "count" });
    this.body = element("tbody");
    this.heads = COLUMNS.map(([key, words, kind]) => element("th",
      { scope: "col", class: kind, "data-key": key },
      element("button", { type: "button", onclick: () => this.sortBy(key) }, words)));
    this.earlier = element("button", { type: "button", onclick: () => this.turn(-1) }, "Back");
    this.later = element("button", { type: "button", onclick: () => this.turn(1) }, "More");
    this.pages = element("span");
    place.append(...[
      element("div", { class: "tools" },
        element("label", {}, "Find ", element("input", {
          type: "search", id: "find",
          oninput: (event) => again(() => { this.words = sought(event.target.value); }),
        })),
        this.reports.length > 1
          ? select("Step", [["1", "with the plan"], ["0", "as it is"]],
            (value) => this.take(Number(value))) : null,
        select("Kind", [["", "all"], ...kinds.map((kind) => [kind, kind])],
          (value) => { this.kind = value; }),
        select("Which", [["", "all"], ["exposed", "exposed"], ["hidden", "hidden"],
          ["sync", "synchronous"]], (value) => { this.fate = value; }),
        element("label", {}, element("input", {
          type: "checkbox", checked: true, id: "grouped",
          onchange: (event) => again(() => { this.grouped = event.target.checked; }),
        }), " those alike in one row"),
      ),
      this.count,
      element("div", { class: "scroll", tabindex: "0", role: "region",
        "aria-label": "Collectives" },
      element("table", { class: "sites", role: "table" },
        element("caption", { class: "unseen" }, "Collectives"),
        element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...this.heads)),
        this.body)),
      element("div", { class: "tools" }, this.earlier, this.later, this.pages),
    ]);
    this.body.setAttribute("role", "rowgroup");
    for (const head of this.heads) head.setAttribute("role", "columnheader");
  }

  sortBy(key) {
    this.down = this.sort === key ? !this.down : !["name", "verdict", "place"].includes(key);
    this.sort = key;
    this.page = 0;
    this.fill();
  }

  turn(by) {
    this.page += by;
    this.fill();
    this.body.closest("table").scrollIntoView({ block: "start" });
  }

  chosen() {
    const all = this.grouped ? this.groups : this.rows;
    const found = all.filter((row) =>
      (!this.kind || row.kind === this.kind) &&
      (!this.words || row.sought.includes(this.words)) &&
      (!this.fate ||
        (this.fate === "exposed" ? row.exposed > 0.05 * row.seconds
          : this.fate === "hidden" ? row.exposed <= 0.05 * row.seconds : row.sync)));
    const key = this.sort, sign = this.down ? -1 : 1;
    return found.sort((one, other) => {
      const a = one[key], b = other[key];
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
    });
  }

  fill() {
    const found = this.chosen();
    const last = Math.max(0, Math.ceil(found.length / PAGE) - 1);
    this.page = Math.min(Math.max(this.page, 0), last);
    const shown = found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    this.heads.forEach((head, n) => {
      const mine = COLUMNS[n][0] === this.sort;
      head.setAttribute("aria-sort", mine ? (this.down ? "descending" : "ascending") : "none");
    });
    this.body.replaceChildren(...shown.flatMap((row) => this.lines(row)));
    const exposed = found.reduce((sum, row) => sum + row.exposed, 0);
    const sites = found.reduce((sum, row) => sum + row.count, 0);
    this.count.textContent = `${sites} of ${this.groups.reduce((s, g) => s + g.count, 0)} ` +
      `collectives in ${found.length} row${found.length === 1 ? "" : "s"}; ` +
      `they expose ${inSeconds(exposed)}, ` +
      `${inPercent(exposed, this.step)} of the step.` +
      (this.left && !this.grouped ? ` ${this.left} more are in groups only.` : "");
    this.earlier.disabled = this.page === 0;
    this.later.disabled = this.page === last;
    this.earlier.hidden = this.later.hidden = last === 0;
    this.pages.textContent = last > 0 ? `${this.page + 1} of ${last + 1}` : "";
  }

  lines(row) {
    const key = `${this.grouped}/${row.name}/${row.place}`;
    const open = this.opened.has(key);
    const toggle = element("button", {
      type: "button", "aria-expanded": String(open),
      "aria-label": `Details of ${row.name}`,
      onclick: (event) => {
        if (open) this.opened.delete(key); else this.opened.add(key);
        const place = [...this.body.querySelectorAll("button[aria-expanded]")]
          .indexOf(event.currentTarget);
        this.fill();
        this.body.querySelectorAll("button[aria-expanded]")[place].focus();
      },
    }, open ? "▾" : "▸");
    const title = row.count > 1 ? `${row.count} × ${row.kind}` : row.name;
    const marks = [row.sync ? "sync" : "", row.operands > 1 ? `${row.operands} arrays` : ""]
      .filter(Boolean).join(", ");
    const cell = (head, kind, ...children) =>
      element("td", { role: "cell", "data-head": head, class: kind }, ...children);
    const use = row.bound === "latency" ? "latency" : `${row.bound} ${inPercent(row.use, 1)}`;
    const line = element("tr", { role: "row" },
      element("th", { scope: "row", role: "rowheader" }, toggle, title,
        marks ? element("small", {}, ` (${marks})`) : null),
      cell("verdict", "verdict", row.verdict), cell("bytes", "number", inBytes(row.bytes)),
      cell("over", "number", row.members),
      cell("runs", "number", String(Number(row.runs.toFixed(2)))),
      cell("time", "number", inSeconds(row.seconds)),
      cell("exposed", "number",
        element("b", { class: row.exposed > 0.01 * this.step ? "worse" : "" },
          inSeconds(row.exposed))),
      cell("link use", "number", use), cell("where", "", row.place));
    return open ? [line, this.more(row)] : [line];
  }

  more(row) {
    const part = (head, words) => words ? element("div", {}, element("b", {}, `${head}: `), words) : null;
    const names = row.among
      ? row.among.slice(0, 200).map((number) => this.rows[number].name) : [row.name];
    const left = row.count - names.length;
    return element("tr", { role: "row", class: "more" },
      element("td", { role: "cell", colspan: String(COLUMNS.length) },
        part("why", row.why),
        part("slows the kernels beside it by", row.slowed ? inSeconds(row.slowed) : ""),
        part("operation", row.op), part("source", row.source),
        part(row.count > 1 ? "of this kind" : "name",
          names.join(", ") + (left > 0 ? ` and ${left} more` : "")),
        this.timelines ? element("button", { type: "button",
          onclick: () => this.timelines.go(
            this.timelines.nameOf(names[0], this.number), this.number) },
        "Show on the timeline") : null));
  }
}
