(() => {
  const data = JSON.parse($("data").textContent);
  const { labels, texts, rows, summary, review, several } = data;
  const blind = review?.context?.blind === true; // no label is shown before the judgment
  const choices = data.choices ? labels.slice(0, data.choices) : [...labels].sort();
  const ITEM = 60; // pixels, as in the style
  const BATCH = 50; // texts to judge at a time, where none were drawn
  const PACE = 4; // seconds for a text, until it is measured
  const nameOf = (label) => (label === null ? "no label" : labels[label] || "none of the labels");
  const setOf = (label) => partsOf(label, several);
  /** One string for what a file says: a label, or a list of labels. */
  const joined = (said) => (Array.isArray(said) ? choices.filter((label) => said.includes(label)).join(SEPARATOR) : said);
  const inWords = (truth) => truth || "none of the labels";
  const stringOf = (label) => (label === null ? null : labels[label]);
  const described = (label) => data.descriptions[choices.indexOf(label)] ?? null;
  const changed = (row) => row.o !== null && row.l !== null && row.o !== row.l;
  const say = (what) => { $("said").textContent = what; };

  // --- what is to be judged ----------------------------------------------------------------------

  const items = new Map((review?.items ?? []).map((item, place) => [item.text, {
    ...item, place, answer: joined(item.answer), own_label: joined(item.own_label), label: joined(item.label ?? item.own_label), said: item.said?.map(([name, label]) => [name, joined(label)]),
  }]));
  const rowOf = new Map();
  rows.forEach((row) => { if (!rowOf.has(row.x)) rowOf.set(row.x, row); });
  const itemOf = (row) => items.get(texts[row.x]);
  const byUrgency = rows.filter((row) => row.q && rowOf.get(row.x) === row).sort((a, b) => b.u - a.u);
  let queue = [];
  const placeOf = new Map();
  function enqueue(size) {
    queue = review ? rows.filter((row) => itemOf(row) && rowOf.get(row.x) === row).sort((a, b) => itemOf(a).place - itemOf(b).place)
      : byUrgency.slice(0, size);
    queue.forEach((row, place) => placeOf.set(row, place));
  }
  enqueue(BATCH);

  // --- judgments ---------------------------------------------------------------------------------

  const live = data.live ? liveOf({ recordOf, warn }) : null;
  const marks = marksOf(choices, data.choices > 0, several, live?.send, data.instructions);
  const others = new Map(); // text -> [name, label] of other people who judge it differently
  const chosen = new Map(); // text -> a label that is chosen and not saved
  const undoable = [];
  const pace = [];
  let last = 0;
  for (const item of items.values()) {
    const mark = marks.all.get(item.text);
    if (item.said?.length) {
      others.set(item.text, item.said);
      // what this browser knew was one of the opinions
      if (mark && !mark.settled) marks.all.delete(item.text);
    }
    if (item.source === "person" && !marks.all.has(item.text)) {
      marks.all.set(item.text, { truth: item.answer, label: item.label });
    }
  }
  const markOf = (row) => marks.all.get(texts[row.x]);
  const judged = () => queue.filter((row) => markOf(row)).length;
  const labelOf = (row) => (chosen.has(texts[row.x]) ? chosen.get(texts[row.x]) : markOf(row)?.truth);

  function choose(row, one) {
    const label = several ? toggled(row, one) : one;
    if (label === undefined || markOf(row)?.truth === label) chosen.delete(texts[row.x]);
    else chosen.set(texts[row.x], label);
    say(label === undefined ? "No label is chosen." : `${label || "None of the labels"} is chosen. Enter saves.`);
    showChoice(row);
  }

  /** The chosen labels with one more or one less, undefined without any; null: no label applies. */
  function toggled(row, one) {
    if (one === null) return "";
    const before = setOf(labelOf(row) ?? "");
    return choices.filter((label) => (label === one) !== before.includes(label)).join(SEPARATOR) || undefined;
  }

  function put(row, mark) {
    const text = texts[row.x];
    if (mark) marks.set(text, mark);
    else marks.remove(text);
    if (!live) {
      const lost = !marks.kept && marks.all.size > 0;
      $("warning").hidden = !lost;
      $("warning").textContent = lost ? "This browser does not keep judgments for this page: save them before you close it." : "";
    }
    draw(true);
    showProgress();
  }

  /** Save what is chosen and go to the next text that is not judged; `skip`: go there in any case. */
  function save(skip = false) {
    const row = shown[at];
    if (!row) return;
    const text = texts[row.x];
    let saved = "";
    if (chosen.has(text)) {
      const truth = chosen.get(text);
      chosen.delete(text);
      undoable.push({ row, before: markOf(row) });
      put(row, { truth, label: stringOf(row.l), day: new Date().toISOString().slice(0, 10), ...(others.has(text) ? { settled: true } : {}) });
      const now = performance.now();
      if (last) pace.push((now - last) / 1000);
      last = now;
      saved = `Saved: ${inWords(truth)}. `;
    } else if (!skip && !markOf(row)) {
      say("Choose a label first. N skips this text.");
      return;
    }
    advance(saved);
  }

  function advance(saved) {
    const open = (row) => !markOf(row);
    let next = shown.findIndex((row, place) => place > at && open(row));
    if (next < 0) next = shown.findIndex((row, place) => place !== at && open(row));
    if (next < 0) {
      explain();
      say(`${saved}All texts in the list are judged.`);
      // the next Enter saves the file
      if (!$("done").hidden) $("done").querySelector("button").focus();
      return;
    }
    select(next);
    if (detail.getBoundingClientRect().top < 0) detail.scrollIntoView({ block: "start" });
    say(`${saved}${whole(judged())} of ${whole(queue.length)} judged. Next text: ${cut(texts[shown[at].x], 200)}`);
  }

  function undo() {
    const done = undoable.pop();
    if (!done) {
      say("There is nothing to undo.");
      return;
    }
    last = 0;
    put(done.row, done.before);
    goTo(done.row);
    say("Undone.");
  }

  function unmark(row) {
    const text = texts[row.x];
    chosen.delete(text);
    if (markOf(row)) {
      undoable.push({ row, before: markOf(row) });
      put(row, undefined);
      say("Judgment removed.");
    }
    explain();
  }

  // --- the task ----------------------------------------------------------------------------------

  const duration = (seconds) => (seconds < 50 ? "less than a minute" : `about ${many(Math.round(seconds / 60), "minute")}`);

  function task() {
    const context = review?.context ?? { unlabeled: summary.unlabeled, differing: summary.disputed };
    const parts = [
      context.unlabeled ? `${many(context.unlabeled, "text has", "texts have")} no label` : "",
      context.differing ? (review ? `on ${whole(context.differing)} the strategies differ` : `on ${whole(context.differing)} the neighbors contradict the LLM`) : "",
    ].filter(Boolean);
    const total = review ? review.texts : data.total;
    const state = !total ? "There is no text yet" : blind ? (others.size ? "What others said is shown where they differ" : "No label is shown: you judge blind") : parts.join("; ") || "Every text has a label";
    const what = review ? `Judge ${many(queue.length, "text")}` : `Judge the ${whole(queue.length)} that look wrong`;
    $("todo").replaceChildren(el("span", {}, `${state[0].toUpperCase()}${state.slice(1)}. `),
      ...(queue.length ? [el("strong", {}, `${what}, ${duration(queue.length * PACE)}.`)] : []));
    const about = [data.model && `model ${data.model}`, choices.length && many(choices.length, "label"), total && many(total, "text")];
    if (rows.length < data.total) about.push(`${whole(rows.length)} are listed`);
    $("about").textContent = about.filter(Boolean).join(" · ");
  }

  function showProgress() {
    const done = judged();
    const left = queue.length - done;
    $("progress").hidden = !queue.length;
    $("bar").max = Math.max(queue.length, 1);
    $("bar").value = done;
    const sorted = [...pace].sort((a, b) => a - b);
    const each = sorted.length < 5 ? PACE : sorted[sorted.length >> 1];
    $("far").textContent = `${whole(done)} of ${whole(queue.length)} judged${done && left ? `, ${duration(left * each)} left` : ""}`;
    $("undo").disabled = !undoable.length;
    showLearned();
    finished(queue.length > 0 && left === 0);
    const mine = marksHere().length;
    $("marked").textContent = `${many(mine, "text")} judged`;
    const there = review ? 0 : marks.all.size - mine;
    $("elsewhere").hidden = !there;
    $("elsewhere").querySelector("span").textContent = `and ${many(there, "text")} judged on other pages with these labels`;
    const nothing = !exported().length;
    $("save").textContent = `Save ${fileName}`;
    for (const button of [$("save"), ...document.querySelectorAll("[data-format]")]) button.disabled = nothing;
  }

  function showLearned() {
    const box = $("learned");
    if (review?.context?.candidates.length && review.items.some((item) => item.probability !== null)) {
      const lesson = learnedOf(review, marks.all);
      box.hidden = !lesson;
      box.replaceChildren(...(lesson ?? []));
      return;
    }
    const known = queue.filter((row) => markOf(row) && markOf(row).truth !== null);
    const right = (label) => known.filter((row) => stringOf(label(row)) === markOf(row).truth).length;
    const [before, after] = [right((row) => row.o), right((row) => row.l)];
    // who chooses among runs must not know which of them is right
    // a blind review has no label that could be right
    box.hidden = !known.length || review?.model === "" || blind;
    box.replaceChildren(el("strong", {}, before === after && !summary.changed ? `${whole(after)} right` : `After: ${whole(after)} right, before: ${whole(before)}`,
      `, of ${many(known.length, "judged text")}.`), review ? "" : " They were chosen because they look wrong, so this says little about the others.");
  }

  function finished(is) {
    const box = $("done");
    if (live) $("end").hidden = is;
    if (box.hidden === !is) return;
    box.hidden = !is;
    if (!is) return;
    if (live) {
      box.replaceChildren(el("p", { class: "row" }, el("strong", {}, `All ${many(queue.length, "text")} are judged.`),
        el("button", { type: "button", class: "act", onclick: end }, "Done"),
        el("span", { class: "quiet" }, "The labels are then corrected, and the terminal says what is next.")));
      return;
    }
    const command = data.then ?? (review ? `learned = await nuc.learn(testnuc.Review.load("${fileName}"))` : null);
    box.replaceChildren(
      el("p", {}, el("strong", {}, `All ${many(queue.length, "text")} are judged.`), " Save them, then learn from them:"),
      el("p", { class: "row" },
        el("button", { type: "button", class: "act", onclick: saveFile }, `Save ${fileName}`),
        command && el("code", {}, command),
        !review && queue.length < byUrgency.length && el("button", { type: "button", onclick: () => { enqueue(queue.length + BATCH); filter(); showProgress(); } }, `${BATCH} more`)));
  }

  // --- files -------------------------------------------------------------------------------------

  const fileName = data.file ?? (review ? "review.json" : "marks.json");
  const marksHere = () => (review ? [...items.keys()] : [...new Set(rows.map((row) => texts[row.x]))]).filter((text) => marks.all.has(text));
  const numberOf = new Map(texts.map((text, number) => [text, number]));

  function exported() {
    const here = new Set(marksHere());
    const all = $("with-elsewhere").checked && !review;
    return [...marks.all].filter(([text]) => all || here.has(text)).map(([text, mark]) => {
      const row = rowOf.get(numberOf.get(text));
      return { text, truth: mark.truth, label: row ? stringOf(row.l) : mark.label, own: row ? stringOf(row.o) : null, trust: row ? row.t : null };
    });
  }

  function download(name, type, content) {
    const url = URL.createObjectURL(new Blob([content], { type }));
    const link = el("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    marks.saved = true;
    say(`${name} saved.`);
  }

  const answerOf = (mark) => (several ? setOf(mark.truth ?? "") : mark.truth);

  /** A judgment as the server of this page takes it: position, whether there is one, label. */
  function recordOf(text) {
    const mark = marks.all.get(text);
    return items.has(text) ? [items.get(text).place, mark !== undefined, mark ? answerOf(mark) : null] : null;
  }

  function warn(fault) {
    $("warning").hidden = !fault;
    $("warning").textContent = fault ? `Not saved: ${fault}. This page tries again; Save ${fileName} below keeps a copy.` : "";
  }

  /** Let the command that serves this page continue. */
  async function end() {
    if (shown[at] && chosen.has(texts[shown[at].x])) save();
    if (!(await live.end())) return;
    $("ended").querySelector("p").textContent = `${many(judged(), "judgment")} in ${fileName}. The terminal says what is next; you can close this page.`;
    $("ended").showModal();
  }

  function saveFile() {
    const content = review
      ? formats.json({ ...review, items: review.items.map((item) => {
        const mark = marks.all.get(item.text);
        return mark ? { ...item, answer: answerOf(mark), source: "person", day: mark.day ?? item.day ?? "" } : item.source === "person" ? { ...item, answer: null, source: null } : item;
      }) })
      : formats.review(exported(), { labels: choices, model: data.model, texts: data.total, several });
    download(fileName, "application/json", content);
  }

  async function importFiles(files) {
    let [taken, contrary, foreign_, broken] = [0, 0, 0, 0];
    for (const file of files) {
      let pairs;
      try {
        pairs = formats.read(await file.text());
      } catch {
        pairs = undefined;
      }
      if (pairs === undefined) broken++;
      for (const [text, said] of pairs ?? []) {
        const names = Array.isArray(said) ? said : [said];
        if (said !== null && (Array.isArray(said) !== several || !names.every((name) => choices.includes(name)))) {
          foreign_++;
          continue;
        }
        const label = joined(said);
        const mark = marks.all.get(text);
        if (mark && mark.truth !== label) {
          contrary++;
          others.set(text, [...(others.get(text) ?? []), [file.name, label]]);
        } else if (!mark) {
          taken++;
          marks.set(text, { truth: label, label: null });
        }
      }
    }
    const parts = [`${many(taken, "judgment")} imported`, contrary && `${whole(contrary)} contradict yours, which stay`,
      foreign_ && `${whole(foreign_)} have a label that is not in the set`, broken && `${many(broken, "file")} held no judgments`];
    const message = `${parts.filter(Boolean).join("; ")}.`;
    $("warning").hidden = !(contrary || foreign_ || broken);
    $("warning").textContent = message;
    say(message);
    filter(shown[at]);
    showProgress();
  }

  // --- the list: only the rows in sight are in the document --------------------------------------

  const list = $("list");
  const sized = $("sized");
  let shown = rows;
  let at = 0; // the chosen one, in `shown`
  let drawn = [-1, -1];
  let pending = 0; // the timer of a search that is still typed
  const lower = new Array(texts.length);
  const folded = (text) => (lower[text] ??= texts[text].toLowerCase());

  const tests = {
    queue: (row) => placeOf.has(row),
    all: () => true,
    changed,
    none: (row) => row.l === null,
    error: (row) => row.e !== null,
    open: (row) => !markOf(row),
    judged: (row) => Boolean(markOf(row)),
    corrected: (row) => markOf(row) !== undefined && markOf(row).truth !== stringOf(row.l),
    differ: (row) => others.has(texts[row.x]),
  };
  const bin = (trust) => (trust === null ? "unknown" : String(Math.min(Math.floor(trust * 10), 9)));
  // what is not known comes last
  const up = (key) => (a, b) => (a[key] ?? Infinity) - (b[key] ?? Infinity);
  const words = new Intl.Collator(undefined, { numeric: true }).compare;
  const place = (row) => placeOf.get(row) ?? Infinity;
  const orders = {
    queue: (a, b) => (place(a) === place(b) ? b.u - a.u : place(a) - place(b)),
    input: () => 0,
    trust: up("t"),
    "-trust": (a, b) => (b.t ?? -1) - (a.t ?? -1),
    margin: up("m"),
    label: (a, b) => words(nameOf(a.l), nameOf(b.l)),
    text: (a, b) => words(cut(texts[a.x], 200), cut(texts[b.x], 200)),
  };

  function filter(choose_ = null) {
    clearTimeout(pending);
    pending = 0;
    const parts = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const test = tests[$("show").value];
    const label = $("label").value;
    const level = $("level").value;
    shown = rows.filter((row) =>
      test(row)
      && (label === "" || String(row.l) === label || (several && row.l !== null && setOf(labels[row.l]).includes(labels[Number(label)])))
      && (level === "" || (level === "low" ? row.t !== null && row.t < LOW : bin(row.t) === level))
      && parts.every((part) => folded(row.x).includes(part)));
    // sorting is stable, so equals stay in the order of the input
    if ($("sort").value !== "input") shown.sort(orders[$("sort").value]);
    at = Math.max(0, choose_ === null ? 0 : shown.indexOf(choose_));
    sized.style.height = `${Math.max(shown.length * ITEM, 1)}px`;
    list.scrollTop = 0;
    $("count").textContent = `${whole(shown.length)} of ${many(rows.length, "text")}`;
    reveal();
    draw(true);
    explain();
  }

  function item(row, position) {
    const mark = markOf(row);
    const facts = el("span", { class: "facts" },
      !blind && foreign("span", nameOf(row.l), { class: row.l === null ? "error" : "chip" }),
      row.t !== null && el("span", {}, `trust ${two(row.t)}`),
      changed(row) && el("span", { class: "changed" }, "changed"),
      row.e !== null && el("span", { class: "error" }, "error"),
      mark && (blind ? foreign("span", inWords(mark.truth), { class: "chip" }) : mark.truth === stringOf(row.l) ? el("span", { class: "right" }, "✓ right")
        : foreign("span", !mark.truth ? "✗ no label is right" : `→ ${mark.truth}`, { class: "wrong" })));
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

  function select(position) {
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
    filter();
    $("texts").scrollIntoView({ block: "start" });
    list.focus({ preventScroll: true });
  }

  function goTo(row) {
    if (!shown.includes(row)) {
      $("controls").reset();
      $("show").value = "all";
      filter(row);
    } else {
      select(shown.indexOf(row));
    }
    detail.focus({ preventScroll: true });
    detail.scrollIntoView({ block: "nearest" });
  }

  // --- one text ----------------------------------------------------------------------------------

  const detail = $("detail");
  let chooser = null;
  const { wholeText, guide, votes, neighbors, factsOf } = explanationOf({
    data, choices, described, nameOf, rowOf, goTo, leave: () => detail.focus({ preventScroll: true }),
  });

  /** The labels that a text may have, with those who give them: candidates, then neighbors. */
  function candidatesOf(row) {
    const given = new Map();
    const add = (said, by) => {
      for (const label of said === null ? [] : setOf(said)) if (choices.includes(label)) given.set(label, [...(given.get(label) ?? []), by]);
    };
    const found = itemOf(row);
    if (found) for (const [label, names] of found.candidates) names.forEach((name) => add(label, name));
    else {
      add(stringOf(row.o), "the LLM");
      if (row.l !== row.o) add(stringOf(row.l), "the label shown");
      if (row.b !== null) add(stringOf(row.b), "the second choice");
    }
    if (found?.source === "referee") add(found.answer, "the referee");
    for (const [name, label] of others.get(texts[row.x]) ?? []) add(label, name);
    const most = Math.max(given.size, 6);
    for (const [label] of row.v) if (given.size < most) add(stringOf(label), "neighbors");
    for (const [, , label] of row.k) if (given.size < most || given.has(stringOf(label))) add(stringOf(label), "neighbors");
    if (several) for (const [label, by] of given) given.set(label, [...new Set(by)]);
    return given;
  }

  function showChoice(row) {
    chooser.show(labelOf(row));
    const open = chosen.has(texts[row.x]);
    const mark = markOf(row);
    $("state").replaceChildren(...(open ? ["chosen, not saved yet"]
      : mark ? ["saved: ", foreign("strong", inWords(mark.truth))] : []));
    $("unmark").hidden = !mark && !open;
    $("next").classList.toggle("ready", open);
  }

  function judging(row) {
    const given = candidatesOf(row);
    chooser = chooserOf({
      options: optionsOf([...given.keys()].slice(0, 9), choices),
      labels: choices,
      described,
      names: (label) => byOf(given.get(label) ?? []),
      choose: (label) => choose(row, label),
      save,
      leave: () => detail.focus({ preventScroll: true }),
      several,
    });
    const button = (id, key, act, name, more = {}) => el("button",
      { type: "button", id, "aria-keyshortcuts": key, onclick: act, ...more }, name, " ", el("kbd", {}, key));
    return [...chooser.parts, el("div", { class: "acts", role: "group", "aria-label": "Save" },
      button("next", "Enter", () => act(() => save()), "Save and next", { class: "act" }),
      button("skip", "n", () => act(() => save(true)), "Skip"),
      button("unmark", "u", () => act(() => unmark(row)), "Remove"),
      el("span", { id: "state", class: "quiet" }))];
  }

  function explain() {
    const row = shown[at];
    if (!row) {
      chooser = null;
      detail.replaceChildren(el("p", { class: "quiet" }, rows.length ? "Choose a text in the list." : "Texts appear here once they are labeled."));
      return;
    }
    const position = placeOf.has(row) ? `${whole(placeOf.get(row) + 1)} of ${whole(queue.length)} to judge` : `Text ${whole(row.i + 1)}`;
    detail.replaceChildren(
      el("h3", { class: "quiet" }, position),
      ...wholeText(texts[row.x]),
      ...judging(row),
      ...[guide()].filter(Boolean),
      ...(row.w.length && !review ? [el("h3", {}, "Why to judge it"), el("ul", {}, ...row.w.map((why) => foreign("li", why)))] : []),
      ...(row.k.length ? [el("h3", {}, "Nearest texts"), neighbors(row)] : []),
      ...(row.v.length ? [el("h3", {}, "Votes"), votes(row)] : []),
      ...(blind ? [] : [el("h3", {}, "How the label came about"),
        el("dl", { class: "description" }, ...factsOf(row).flatMap(([name, value]) => [el("dt", {}, name), foreign("dd", value)]))]),
    );
    showChoice(row);
    detail.scrollTop = 0;
  }

  // --- keyboard and mouse ------------------------------------------------------------------------

  const page = () => Math.max(1, Math.floor(list.clientHeight / ITEM) - 1);
  const steps = {
    ArrowDown: () => select(at + 1), ArrowUp: () => select(at - 1),
    PageDown: () => select(at + page()), PageUp: () => select(at - page()),
    Home: () => select(0), End: () => select(shown.length - 1),
  };
  list.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in steps)) return;
    event.preventDefault();
    steps[event.key]();
  });

  const into = (field) => { field.focus(); field.select(); };
  const single = {
    j: () => select(at + 1), k: () => select(at - 1), n: () => save(true), u: (row) => unmark(row),
    "/": () => { if (chooser?.find) into(chooser.find); }, s: () => into($("search")), "?": () => $("help").showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.altKey || document.querySelector("dialog[open]")) return;
    const { key, target } = event;
    const field = target.closest("input:not([type=checkbox]), textarea");
    if ((event.ctrlKey || event.metaKey) && key.toLowerCase() === "z" && !event.shiftKey) {
      if (field?.value) return; // a field undoes its own typing
      event.preventDefault();
      undo();
    } else if (event.ctrlKey || event.metaKey) {
      return;
    } else if (target === $("search") && ["Enter", "ArrowDown", "Escape"].includes(key)) {
      event.preventDefault();
      search();
      list.focus();
    } else if (field || target.closest("select")) {
      return;
    } else if (key === "Enter") {
      // a label that has the focus is chosen by the space bar
      if (target.closest("button:not(.option), summary, a, label")) return;
      event.preventDefault();
      act(() => save());
    } else if (!$("single").checked && !detail.contains(target) && target !== list) {
      return;
    } else if (chooser?.keys.has(key)) {
      event.preventDefault();
      choose(shown[at], chooser.keys.get(key));
      // the Enter that follows saves, and does not press what has the focus
      if (target.closest("button:not(.option), summary, a")) detail.focus({ preventScroll: true });
    } else if (key in single && Object.hasOwn(single, key)) {
      event.preventDefault();
      act(() => single[key](shown[at]));
    }
  });

  /** Do what may make the panel anew: what had the focus in there is gone. */
  function act(what) {
    const inside = detail.contains(document.activeElement);
    what();
    if (inside && document.activeElement === document.body) detail.focus({ preventScroll: true });
  }

  sized.addEventListener("click", (event) => {
    const found = event.target.closest(".item");
    if (!found) return;
    select(Number(found.id.slice("item-".length)));
    if (detail.getBoundingClientRect().bottom < 0) detail.scrollIntoView({ block: "start" });
  });
  list.addEventListener("scroll", () => requestAnimationFrame(() => draw()), { passive: true });
  new ResizeObserver(() => draw(true)).observe(list);

  // many texts are searched when the typing pauses, or when what is found is asked for
  function search() {
    if (pending) filter();
  }
  $("search").addEventListener("input", () => {
    clearTimeout(pending);
    pending = setTimeout(search, rows.length > 2_000 ? 120 : 0);
  });
  let pointed = false;
  for (const id of ["show", "label", "level", "sort"]) {
    $(id).addEventListener("pointerdown", () => { pointed = true; });
    $(id).addEventListener("keydown", () => { pointed = false; });
    $(id).addEventListener("change", () => {
      filter();
      // a list of choices takes keys for itself: who uses a mouse is done with it
      if (pointed) list.focus({ preventScroll: true });
    });
  }
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("controls").addEventListener("reset", () => setTimeout(() => { $("show").value = "all"; filter(); }));
  $("undo").addEventListener("click", undo);
  $("save").addEventListener("click", saveFile);
  for (const button of document.querySelectorAll("[data-format]")) {
    const { name, type, make } = formats.all[button.dataset.format];
    button.addEventListener("click", () => download(name, type, make(exported(), { model: data.model, several })));
  }
  $("with-elsewhere").addEventListener("change", showProgress);
  $("import-open").addEventListener("click", () => $("import").click());
  $("import").addEventListener("change", async (event) => {
    await importFiles([...event.target.files]);
    event.target.value = "";
  });
  $("ended").addEventListener("cancel", (event) => event.preventDefault());
  $("end").addEventListener("click", end);
  $("help-open").addEventListener("click", () => $("help").showModal());
  addEventListener("beforeunload", (event) => { if (live ? live.isPending() : !marks.kept && !marks.saved) event.preventDefault(); });

  // --- begin -------------------------------------------------------------------------------------

  const counted = new Map(summary.labels);
  $("label").append(el("option", { value: "" }, "any"), ...summary.labels.map(([label]) =>
    el("option", { value: String(label) }, `${cut(nameOf(label), 60)} (${whole(counted.get(label))})`)));
  $("level").append(el("option", { value: "" }, "any"), el("option", { value: "low" }, `below ${LOW}`),
    ...summary.trust.map((_, bin_) => el("option", { value: String(bin_) }, `${(bin_ / 10).toFixed(1)} to ${((bin_ + 1) / 10).toFixed(1)}`)),
    el("option", { value: "unknown" }, "unknown"));
  // what asks for labels that are not shown
  if (blind) {
    for (const option of document.querySelectorAll("[value=changed], [value=none], [value=corrected], [value=margin], [value=label], [value=trust], [value='-trust']")) option.remove();
    $("label").parentElement.hidden = $("level").parentElement.hidden = true;
  }
  $("show").value = queue.length ? "queue" : "all";
  $("glance").append(...overviewOf({ data, nameOf, narrow }));
  $("glance").hidden = !$("glance").childElementCount;
  $("texts").hidden = $("files").hidden = !rows.length;
  $("end").hidden = !live;
  if (live) $("keeping").textContent = `Each judgment is saved in ${fileName} as you make it.`;
  task();
  filter();
  const first = shown.findIndex((row) => !markOf(row));
  if (first > 0) select(first);
  showProgress();
})();
