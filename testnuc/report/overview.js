// The run at a glance, below the texts. A panel without contents is not made.
const LOW = 0.5;

function overviewOf({ data, nameOf, narrow }) {
  const { summary } = data;

  function bar(name, number, part, act, hint) {
    const fill = el("span", { class: "fill", "aria-hidden": "true" });
    fill.style.width = `${Math.max(part * 100, 0.5)}%`;
    const face = typeof name === "string" ? foreign("span", name, { class: "name" }) : name;
    return el("li", {}, el("button", { type: "button", onclick: act, title: hint }, fill, face, el("span", { class: "number" }, whole(number))));
  }

  const panel = (id, title, ...children) =>
    el("section", { class: "panel", "aria-labelledby": id }, el("h3", { id }, title), ...children);

  function labelled() {
    const most = Math.max(1, ...summary.labels.map(([, n]) => n));
    return panel("labels-title", "Labels", el("ul", { id: "labels", class: "bars" }, ...summary.labels.map(([label, n]) =>
      bar(nameOf(label), n, n / most, () => narrow({ label: String(label) }), nameOf(label)))));
  }

  function trusted() {
    const highest = Math.max(...summary.trust);
    if (!highest) return null;
    const bins = summary.trust.map((n, at) => {
      const [from, to] = [(at / 10).toFixed(1), ((at + 1) / 10).toFixed(1)];
      const fill = el("span", { class: at < LOW * 10 ? "fill low" : "fill", "aria-hidden": "true" });
      fill.style.height = `${(n / highest) * 80}%`;
      return el("li", {}, el("button",
        { type: "button", "aria-label": `${many(n, "text")} with trust from ${from} to ${to}`, onclick: () => narrow({ level: String(at) }) },
        el("span", { class: "number" }, n ? whole(n) : ""), fill, el("span", { class: "name" }, from)));
    });
    return panel("trust-title", "Trust",
      el("p", { class: "quiet" }, trustMeans(data)),
      el("ol", { id: "trust", class: "histogram" }, ...bins),
      summary.unknown > 0 && el("p", { id: "trust-note", class: "quiet" },
        `${many(summary.unknown, "text has", "texts have")} no trust: too few neighbors.`));
  }

  function changes() {
    if (!summary.changed) return null;
    const widest = summary.pairs[0][2];
    return panel("changed-title", "Labels that differ from the LLM's",
      el("ul", { id: "pairs", class: "bars" }, ...summary.pairs.map(([own, label, n]) => bar(
        el("span", { class: "name pair" }, foreign("bdi", nameOf(own)), " → ", foreign("bdi", nameOf(label))),
        n, n / widest, () => narrow({ show: "changed", label: String(label) }), `${nameOf(own)} → ${nameOf(label)}`))),
      summary.otherPairs > 0 && el("p", { class: "quiet" }, `and ${many(summary.otherPairs, "more pair")} of labels`));
  }

  function confused() {
    if (!data.confused.length) return null;
    const why = data.confusedSurely ? "Near copies have different labels, so the LLM confuses some of these."
      : "Similar texts have these labels more often than by chance. They may rightly differ: judge some before you merge labels.";
    const side = (text) => foreign("p", cut(text, 200));
    return panel("confused-title", "Labels that are confused", el("p", { class: "quiet" }, why),
      ...data.confused.map(({ first, second, examples }, at) => el("details", { class: "confused", open: at === 0 },
        el("summary", {}, foreign("bdi", first), " | ", foreign("bdi", second)),
        ...examples.map(([one, other]) => el("div", { class: "sides" }, side(one), side(other))))));
  }

  function costs() {
    const low = summary.trust.slice(0, LOW * 10).reduce((sum, n) => sum + n, 0);
    const share = (n) => el("small", {}, ` ${((100 * n) / data.total).toFixed(1)} %`);
    const cards = [["texts", whole(data.total)]];
    if (summary.changed) cards.push(["labels differ from the LLM's", whole(summary.changed), share(summary.changed)]);
    if (low) cards.push(["trust below 0.5", whole(low), share(low)]);
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
    return el("dl", { id: "cards" }, ...cards.map(([name, value, part = null]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, value, part))));
  }

  // a review alone is not a run
  if (!data.total || data.only) return [];
  const panels = [labelled(), trusted(), changes()].filter(Boolean);
  const learned = data.learned ? [el("p", {}, data.learned)] : [];
  return [el("h2", { id: "glance-title" }, "At a glance"), ...learned, el("div", { class: "panels" }, ...panels), confused(), costs()].filter(Boolean);
}

/** What trust means on this page. */
function trustMeans(data) {
  if (data.several) {
    return data.learned ? "Trust is the chance that all labels of a text are right, learned from judged texts."
      : "Trust is the part of the neighbors' votes for the closest of a text's decisions. It orders texts, and is the chance that all labels are right only once you judge some.";
  }
  if (data.learned || data.review?.context.earlier.length) return "Trust is the chance that a label is right, learned from judged texts.";
  return "Trust is the part of the neighbors' votes for a label. It orders texts, and is the chance that the label is right only once you judge some.";
}
