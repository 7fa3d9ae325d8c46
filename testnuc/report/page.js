"use strict";
// Texts and labels may be hostile. They reach the page as text nodes and option values alone:
// nothing here makes markup of a string.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { labels, texts, rows, summary } = data;
  const choices = data.choices ? labels.slice(0, data.choices) : [...labels].sort();
  const ITEM = 60; // pixels, as in the style
  const SHOWN = 3000; // characters of a text, until all of it is asked for
  const LOW = 0.5;
  const SOURCES = new Map([
    ["llm", "the LLM"], ["vote", "the vote"], ["head", "neighbors and a model of your texts"],
    ["person", "a person"], ["referee", "the referee"],
  ]);

  const $ = (id) => document.getElementById(id);
  const whole = (n) => n.toLocaleString("en");
  const two = (n) => (n === null ? "–" : n.toFixed(2));
  const many = (n, one, more = `${one}s`) => `${whole(n)} ${n === 1 ? one : more}`;
  const nameOf = (label) => (label === null ? "no label" : labels[label]);

  /** Make an element; strings become text nodes. */
  function el(tag, props = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(props)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") made.className = value;
      else if (name === "onclick") made.addEventListener("click", value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  /** What someone else wrote, in its own direction. */
  const foreign = (tag, text, props = {}) => el(tag, { dir: "auto", ...props }, text);

  function cut(text, length) {
    if (text.length <= length) return text;
    const last = text.charCodeAt(length - 1);
    return text.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length);
  }

  const changed = (row) => row.o !== null && row.l !== null && row.o !== row.l;

  // --- marks: what is true of a text -------------------------------------------------------------
  // text -> {label: what it was labeled, truth: what is right, or null where that was not said}

  const KEY = `testnuc-marks-${document.body.dataset.key}`;
  const marks = new Map();
  let kept = true;
  let downloaded = true;
  try {
    for (const [text, mark] of JSON.parse(localStorage.getItem(KEY) || "[]")) marks.set(text, mark);
  } catch {
    kept = false; // no storage for this page: marks live as long as it does
  }

  /** "right", "wrong" or "" for a row. */
  function markOf(row) {
    const mark = marks.get(texts[row.x]);
    if (!mark) return "";
    const label = row.l === null ? null : labels[row.l];
    if (mark.truth !== null) return mark.truth === label ? "right" : "wrong";
    return mark.label === label ? "wrong" : "";
  }

  function keep() {
    downloaded = marks.size === 0;
    try {
      localStorage.setItem(KEY, JSON.stringify([...marks]));
      kept = true;
    } catch {
      kept = false;
    }
    const lost = !kept && marks.size > 0;
    $("warning").hidden = !lost;
    $("warning").textContent = lost
      ? "The browser does not keep marks for this page: download them before you close it."
      : "";
    tellMarks();
  }

  function tellMarks() {
    $("marked").textContent = `${many(marks.size, "text")} marked`;
    $("save-json").disabled = $("save-csv").disabled = marks.size === 0;
  }

  /** Mark the chosen row; `truth` is a label, or null where only the wrong is known. */
  function mark(row, truth) {
    const label = row.l === null ? null : labels[row.l];
    marks.set(texts[row.x], { label, truth });
    keep();
    const as = truth === label ? "right" : "wrong";
    say(`Marked ${as}${as === "wrong" && truth !== null ? `, right is ${truth}` : ""}. ${many(marks.size, "text")} marked.`);
    refresh();
  }

  function unmark(row) {
    if (!marks.delete(texts[row.x])) return;
    keep();
    say("Mark taken back.");
    refresh();
  }

  function refresh() {
    draw(true);
    tellMark(shown[at]);
  }

  function told() {
    // half a character, of a text that was refused, has no place in a file
    const whole = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");
    return [...marks].map(([text, mark]) => ({
      text: whole(text),
      label: mark.label,
      right: mark.truth === null ? false : mark.truth === mark.label,
      right_label: mark.truth,
    }));
  }

  function asCsv() {
    // a spreadsheet runs what begins like a formula; read_marks takes the ' away again
    const cell = (value) => {
      const text = value === null ? "" : String(value);
      return `"${(/^[=+\-@\t\r']/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
    };
    const names = ["text", "label", "right", "right_label"];
    const lines = told().map((mark) => names.map((name) => cell(mark[name])).join(","));
    return `${[names.join(","), ...lines].join("\r\n")}\r\n`;
  }

  function download(name, type, content) {
    const url = URL.createObjectURL(new Blob([content], { type }));
    const link = el("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    downloaded = true;
    say(`${name} downloaded.`);
  }

  const say = (what) => { $("said").textContent = what; };

  // --- at a glance -------------------------------------------------------------------------------

  function bar(name, number, part, act, hint) {
    const fill = el("span", { class: "fill", "aria-hidden": "true" });
    fill.style.width = `${Math.max(part * 100, 0.5)}%`;
    const face = typeof name === "string" ? foreign("span", name, { class: "name" }) : name;
    const props = { type: "button", onclick: act, title: hint };
    return el("li", {}, el("button", props, fill, face, el("span", { class: "number" }, whole(number))));
  }

  function glance() {
    const about = [data.model && `model ${data.model}`, choices.length && many(choices.length, "label")];
    if (rows.length < data.total) {
      about.push(`${whole(rows.length)} of ${whole(data.total)} texts are listed, those to review first; all are counted`);
    }
    $("about").textContent = about.filter(Boolean).join(" · ");
    const low = summary.trust.slice(0, LOW * 10).reduce((sum, n) => sum + n, 0);
    const share = (n) => (data.total ? el("small", {}, ` ${((100 * n) / data.total).toFixed(1)} %`) : null);
    const cards = [
      ["texts", whole(data.total)],
      ["changed by the vote", whole(summary.changed), share(summary.changed)],
      ["to review first", whole(summary.review)],
      ["trust below 0.5", whole(low), share(low)],
    ];
    if (summary.errors) cards.push(["with an error", whole(summary.errors)]);
    if (data.usage) {
      const { calls, input_tokens: sent, output_tokens: got, usd, store_hits: hits, retries } = data.usage;
      cards.push(["calls", whole(calls)]);
      if (hits) cards.push(["answers reused", whole(hits)]);
      if (retries) cards.push(["retries", whole(retries)]);
      const tokens = sent === null || got === null ? null : sent + got;
      if (tokens !== 0) cards.push(["tokens", tokens === null ? "unknown" : whole(tokens)]);
      if (tokens !== 0 || usd) cards.push(["US dollars", usd === null ? "unknown" : usd.toFixed(4)]);
    }
    if (data.seconds) cards.push(["seconds", data.seconds.toFixed(1)]);
    $("cards").append(...cards.map(([name, value, part = null]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value, part))));

    const most = Math.max(1, ...summary.labels.map(([, n]) => n));
    $("labels").append(...summary.labels.map(([label, n]) =>
      bar(nameOf(label), n, n / most, () => narrow({ label: String(label) }), nameOf(label))));

    const highest = Math.max(1, ...summary.trust);
    $("trust").append(...summary.trust.map((n, at) => {
      const [from, to] = [(at / 10).toFixed(1), ((at + 1) / 10).toFixed(1)];
      const fill = el("span", { class: at < LOW * 10 ? "fill low" : "fill", "aria-hidden": "true" });
      fill.style.height = `${(n / highest) * 80}%`;
      return el("li", {}, el("button",
        { type: "button", "aria-label": `${many(n, "text")} with trust from ${from} to ${to}`, onclick: () => narrow({ level: String(at) }) },
        el("span", { class: "number" }, n ? whole(n) : ""), fill, el("span", { class: "name" }, from)));
    }));
    $("trust-note").textContent = summary.unknown
      ? `${many(summary.unknown, "text has", "texts have")} no trust: too few neighbors to tell.`
      : "";

    const widest = summary.pairs.length ? summary.pairs[0][2] : 1;
    $("pairs").append(...summary.pairs.map(([own, label, n]) => bar(
      el("span", { class: "name pair" }, foreign("bdi", nameOf(own)), " → ", foreign("bdi", nameOf(label))),
      n, n / widest, () => narrow({ show: "changed", label: String(label) }), `${nameOf(own)} → ${nameOf(label)}`)));
    $("pairs-note").textContent = !data.total ? "" : !summary.changed
      ? "Nothing: each text keeps the label that the LLM gave it."
      : summary.otherPairs ? `and ${many(summary.otherPairs, "more pair")} of labels` : "";
  }

  // --- the list: only the rows in sight are in the document -------------------------------------

  const list = $("list");
  const sized = $("sized");
  let shown = rows;
  let at = 0; // the chosen one, in `shown`
  let drawn = [-1, -1];
  let pending = 0; // the timer of a search that is still typed
  const lower = new Array(texts.length);
  const folded = (text) => (lower[text] ??= texts[text].toLowerCase());

  const tests = {
    all: () => true,
    review: (row) => row.q,
    changed,
    none: (row) => row.l === null,
    error: (row) => row.e !== null,
    unmarked: (row) => markOf(row) === "",
    right: (row) => markOf(row) === "right",
    wrong: (row) => markOf(row) === "wrong",
  };
  const bin = (trust) => (trust === null ? "unknown" : String(Math.min(Math.floor(trust * 10), 9)));
  // what is not known comes last
  const up = (key) => (a, b) => (a[key] ?? Infinity) - (b[key] ?? Infinity);
  const words = new Intl.Collator(undefined, { numeric: true }).compare;
  const orders = {
    review: (a, b) => b.u - a.u,
    input: () => 0,
    trust: up("t"),
    "-trust": (a, b) => (b.t ?? -1) - (a.t ?? -1),
    margin: up("m"),
    label: (a, b) => words(nameOf(a.l), nameOf(b.l)),
    text: (a, b) => words(cut(texts[a.x], 200), cut(texts[b.x], 200)),
  };

  function select(choose = null) {
    clearTimeout(pending);
    pending = 0;
    const parts = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const test = tests[$("show").value];
    const label = $("label").value;
    const level = $("level").value;
    shown = rows.filter((row) =>
      test(row)
      && (label === "" || String(row.l) === label)
      && (level === "" || (level === "low" ? row.t !== null && row.t < LOW : bin(row.t) === level))
      && parts.every((part) => folded(row.x).includes(part)));
    // sorting is stable, so equals stay in the order of the input
    if ($("sort").value !== "input") shown.sort(orders[$("sort").value]);
    at = Math.max(0, choose === null ? 0 : shown.indexOf(choose));
    sized.style.height = `${Math.max(shown.length * ITEM, 1)}px`;
    list.scrollTop = 0;
    $("count").textContent = `${whole(shown.length)} of ${many(rows.length, "text")}`;
    reveal();
    draw(true);
    explain();
  }

  function item(row, position) {
    const state = markOf(row);
    const facts = el("span", { class: "facts" },
      foreign("span", nameOf(row.l), { class: row.l === null ? "error" : "chip" }),
      el("span", {}, row.t === null ? "trust unknown" : `trust ${two(row.t)}`),
      changed(row) ? el("span", { class: "changed" }, "changed") : null,
      row.e !== null ? el("span", { class: "error" }, "error") : null,
      state ? el("span", { class: state }, state === "right" ? "✓ right" : "✗ wrong") : null);
    const made = el("div", {
      class: "item", role: "option", id: `item-${position}`,
      "aria-selected": String(position === at), "aria-posinset": position + 1, "aria-setsize": shown.length,
    }, foreign("span", cut(texts[row.x], 300) || "(empty)", { class: "line" }), facts);
    made.style.transform = `translateY(${position * ITEM}px)`;
    return made;
  }

  function draw(anew = false) {
    const first = Math.max(0, Math.floor(list.scrollTop / ITEM) - 4);
    const end = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ITEM) + 4);
    if (!anew && first === drawn[0] && end === drawn[1]) return;
    drawn = [first, end];
    const made = [];
    for (let position = first; position < end; position++) made.push(item(shown[position], position));
    if (!shown.length) made.push(el("p", { class: "empty" }, rows.length ? "No text is like that. Clear the filters to see all." : "There is no text yet."));
    sized.replaceChildren(...made);
    sized.style.overflow = shown.length ? "hidden" : "visible";
    if (at >= first && at < end) list.setAttribute("aria-activedescendant", `item-${at}`);
    else list.removeAttribute("aria-activedescendant");
  }

  /** Bring the chosen row in sight. */
  function reveal() {
    const top = at * ITEM;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ITEM > list.scrollTop + list.clientHeight) list.scrollTop = top + ITEM - list.clientHeight;
  }

  function choose(position) {
    if (!shown.length) return;
    at = Math.min(Math.max(position, 0), shown.length - 1);
    reveal();
    draw(true);
    explain();
  }

  /** Set some of the filters and clear the others. */
  function narrow(filters) {
    $("search").value = "";
    for (const [id, value] of Object.entries({ show: "all", label: "", level: "", ...filters })) $(id).value = value;
    select();
    $("texts-title").scrollIntoView({ block: "start" });
    list.focus({ preventScroll: true });
  }

  // --- the explanation of one text ---------------------------------------------------------------

  const detail = $("detail");
  const firstRowOf = new Map();
  rows.forEach((row) => { if (!firstRowOf.has(row.x)) firstRowOf.set(row.x, row); });

  function wholeText(text) {
    const box = foreign("div", cut(text, SHOWN), { class: "text" });
    if (text.length <= SHOWN) return [box];
    const all = el("button", {
      type: "button", "aria-expanded": "false",
      onclick: () => { box.textContent = text; all.remove(); detail.focus({ preventScroll: true }); },
    }, `Show all ${whole(text.length)} characters`);
    return [box, all];
  }

  function marking(row) {
    const truth = el("select", { id: "truth" }, el("option", { value: "" }, "not said"),
      ...choices.filter((label) => row.l === null || label !== labels[row.l])
        .map((label) => el("option", { value: `=${label}` }, label)));
    truth.addEventListener("change", () => mark(row, truth.value === "" ? null : truth.value.slice(1)));
    const button = (id, key, act, name, disabled) => el("button",
      { type: "button", id, "aria-keyshortcuts": key, disabled, onclick: () => act(row) }, name);
    return el("div", { class: "marking", role: "group", "aria-label": "Mark" },
      button("right", "r", right, "✓ Right", row.l === null),
      button("wrong", "w", wrong, "✗ Wrong"),
      el("label", { class: "quiet", for: "truth" }, "right label"), truth,
      button("unmark", "u", unmark, "Unmark"));
  }

  /** Show how the chosen text is marked; nothing is made anew, so that what has the focus keeps it. */
  function tellMark(row) {
    const state = markOf(row);
    $("right").setAttribute("aria-pressed", String(state === "right"));
    $("wrong").setAttribute("aria-pressed", String(state === "wrong"));
    const known = marks.get(texts[row.x]);
    $("truth").value = state === "wrong" && known.truth !== null ? `=${known.truth}` : "";
    if (!state && document.activeElement === $("unmark")) $("wrong").focus();
    $("unmark").hidden = !state;
  }

  function right(row) {
    if (row.l !== null) mark(row, labels[row.l]);
  }

  /** Mark as wrong; where to say what is right is the next thing asked for. */
  function wrong(row) {
    if (markOf(row) !== "wrong") mark(row, null);
    $("truth").focus();
  }

  function votes(row) {
    const total = row.v.reduce((sum, [, weight]) => sum + weight, 0) || 1;
    const cells = row.v.flatMap(([label, weight]) => {
      const fill = el("div", { class: label === row.l ? "fill winner" : "fill" });
      fill.style.width = `${(100 * weight) / total}%`;
      return [
        foreign("span", nameOf(label), { class: "name" }),
        el("span", { class: "track", "aria-hidden": "true" }, fill),
        el("span", {}, `${weight.toFixed(2)} (${((100 * weight) / total).toFixed(0)} %)`),
      ];
    });
    return el("div", { class: "votes" }, ...cells);
  }

  function neighbors(row) {
    const head = ["similarity", "label", "confidence", "text"]
      .map((name) => el("th", { scope: "col", role: "columnheader" }, name));
    const body = row.k.map(([text, similarity, label, confidence]) => {
      const other = firstRowOf.get(text);
      const told = cut(texts[text], 300) + (texts[text].length > 300 ? " …" : "");
      const cell = other
        ? el("button", { type: "button", dir: "auto", title: "go to this text", onclick: () => goTo(other) }, told)
        : foreign("span", told);
      return el("tr", { role: "row" }, el("td", { role: "cell", class: "figure" }, two(similarity)),
        foreign("td", label === null ? "–" : labels[label], { role: "cell" }),
        el("td", { role: "cell", class: "figure" }, two(confidence)), el("td", { role: "cell" }, cell));
    });
    // the roles are said, as a narrow screen shows the rows as something else than a table's
    return el("table", { role: "table" }, el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...head)),
      el("tbody", { role: "rowgroup" }, ...body));
  }

  function goTo(row) {
    if (!shown.includes(row)) {
      $("controls").reset();
      $("show").value = "all";
      select(row);
    } else {
      choose(shown.indexOf(row));
    }
    detail.focus({ preventScroll: true });
    detail.scrollTop = 0;
  }

  function explain() {
    const row = shown[at];
    if (!row) {
      detail.replaceChildren(el("p", { class: "quiet" }, "Choose a text to see how its label came about."));
      return;
    }
    const own = !row.a ? "nothing: it was not asked, or its call failed"
      : row.o !== null ? `${labels[row.o]}${row.f === null ? "" : ` (confidence ${two(row.f)})`}`
      : `nothing usable${row.d ? `: ${cut(row.d, 300)}` : ""}`;
    const facts = [
      ["label", nameOf(row.l)],
      ["trust", row.t === null ? "unknown" : `${two(row.t)} that this label is right${row.bt === null || row.b === null ? "" : `, ${two(row.bt)} that ${cut(labels[row.b], 100)} is`}`],
      ["the LLM said", own],
      ["given by", SOURCES.get(row.g) ?? null],
      ["share, margin", row.n && row.g !== "person" && row.g !== "referee" ? `${two(row.s)}, ${two(row.m)} of ${many(row.n, "voter")}` : null],
      ["asked", row.c ? null : "until the winner was certain; the other neighbors were not asked"],
      ["reason", row.r],
      ["error", row.e],
    ].filter(([, value]) => value !== null);
    detail.replaceChildren(
      el("h3", {}, `Text ${whole(row.i + 1)}`),
      ...wholeText(texts[row.x]),
      marking(row),
      el("dl", { class: "told" }, ...facts.flatMap(([name, value]) => [el("dt", {}, name), foreign("dd", value)])),
      ...(row.w.length ? [el("h3", {}, "Why to review it"), el("ul", {}, ...row.w.map((why) => foreign("li", why)))] : []),
      ...(row.v.length ? [el("h3", {}, "Votes"), votes(row)] : []),
      el("h3", {}, "Nearest texts"),
      row.k.length ? neighbors(row) : el("p", { class: "quiet" }, "None are known for this text."),
    );
    tellMark(row);
    detail.scrollTop = 0;
  }

  // --- keyboard and mouse ------------------------------------------------------------------------

  const steps = {
    ArrowDown: () => choose(at + 1), ArrowUp: () => choose(at - 1),
    PageDown: () => choose(at + Math.max(1, Math.floor(list.clientHeight / ITEM) - 1)),
    PageUp: () => choose(at - Math.max(1, Math.floor(list.clientHeight / ITEM) - 1)),
    Home: () => choose(0), End: () => choose(shown.length - 1),
    Enter: () => { if (shown[at]) { detail.focus(); detail.scrollIntoView({ block: "nearest" }); } },
  };
  // letters act where a text is looked at, so that nobody marks one by speaking or typing elsewhere
  const letters = {
    j: () => choose(at + 1), k: () => choose(at - 1),
    r: (row) => right(row), w: (row) => wrong(row), u: (row) => unmark(row),
    n: () => {
      const next = shown.findIndex((row, position) => position > at && markOf(row) === "");
      if (next >= 0) choose(next);
      else say("No text without a mark follows.");
    },
  };

  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in steps)) return;
    event.preventDefault();
    steps[event.key]();
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || $("help").open) return;
    const typing = event.target.closest("input, select, textarea") !== null;
    const searching = event.target === $("search");
    if (searching && ["Enter", "ArrowDown", "Escape"].includes(event.key)) {
      event.preventDefault();
      search();
      list.focus();
    } else if (event.key === "Escape" && detail.contains(event.target)) {
      event.preventDefault();
      list.focus();
    } else if (typing || !$("single").checked) {
      return;
    } else if (event.key === "/") {
      event.preventDefault();
      $("search").focus();
      $("search").select();
    } else if (event.key === "?") {
      event.preventDefault();
      $("help").showModal();
    } else if (event.key in letters && shown[at] && (event.target === list || detail.contains(event.target))) {
      event.preventDefault();
      const inside = detail.contains(event.target);
      letters[event.key](shown[at]);
      // another text is explained: what had the focus in there is gone
      if (inside && !detail.contains(document.activeElement)) detail.focus({ preventScroll: true });
    }
  });

  sized.addEventListener("click", (event) => {
    const found = event.target.closest(".item");
    if (found) choose(Number(found.id.slice("item-".length)));
  });
  list.addEventListener("scroll", () => requestAnimationFrame(() => draw()), { passive: true });
  new ResizeObserver(() => draw(true)).observe(list);

  // many texts are searched when the typing pauses, or when what is found is asked for
  function search() {
    if (pending) select();
  }
  $("search").addEventListener("input", () => {
    clearTimeout(pending);
    pending = setTimeout(search, rows.length > 2_000 ? 120 : 0);
  });
  for (const id of ["show", "label", "level", "sort"]) $(id).addEventListener("change", () => select());
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("controls").addEventListener("reset", () => setTimeout(() => { $("show").value = "all"; select(); }));
  $("save-json").addEventListener("click", () => download("marks.json", "application/json", `${JSON.stringify(told(), null, 1)}\n`));
  $("save-csv").addEventListener("click", () => download("marks.csv", "text/csv;charset=utf-8", asCsv()));
  $("help-open").addEventListener("click", () => $("help").showModal());
  addEventListener("beforeunload", (event) => { if (!kept && !downloaded) event.preventDefault(); });

  // --- begin -------------------------------------------------------------------------------------

  const counted = new Map(summary.labels);
  $("label").append(el("option", { value: "" }, "any"), ...summary.labels.map(([label]) =>
    el("option", { value: String(label) }, `${cut(nameOf(label), 60)} (${whole(counted.get(label))})`)));
  $("level").append(el("option", { value: "" }, "any"), el("option", { value: "low" }, "below 0.5"),
    ...summary.trust.map((_, place) => el("option", { value: String(place) }, `${(place / 10).toFixed(1)} to ${((place + 1) / 10).toFixed(1)}`)),
    el("option", { value: "unknown" }, "unknown"));
  $("show").value = rows.some(tests.review) ? "review" : "all";
  glance();
  tellMarks();
  select();
})();
