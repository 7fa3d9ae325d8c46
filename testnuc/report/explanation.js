// How the label of a text came about.
const SHOWN = 3000; // characters of a text, until all of it is asked for
const SOURCES = { llm: "the LLM", vote: "the vote of neighbors", head: "a model of your texts", referee: "the referee", person: "a person" };

/** Who gives a label, in a few words. */
function byOf(names) {
  const distinct = [...new Set(names.map((name) => ({ "the LLM's own labels": "the LLM", "what was learned so far": "learned" }[name] ?? name)))];
  const ways = distinct.filter((name) => name.startsWith("neighbors and a model"));
  const rest = distinct.filter((name) => !ways.includes(name)).map((name) => (name.startsWith("the vote of") ? "the vote" : name));
  return [...rest, ...(ways.length ? [ways.length > 1 ? `${ways.length} models` : "a model"] : [])].join(", ");
}

function explanationOf({ data, choices, described, nameOf, rowOf, goTo, leave }) {
  const { labels, texts } = data;
  const blind = data.review?.context?.blind === true;
  let guideOpen = false;

  function wholeText(text) {
    const box = foreign("div", cut(text, SHOWN), { class: "text" });
    if (text.length <= SHOWN) return [box];
    const all = el("button", {
      type: "button", "aria-expanded": "false",
      onclick: () => { box.textContent = text; all.remove(); leave(); },
    }, `Show all ${whole(text.length)} characters`);
    return [box, all];
  }

  function guide() {
    if (!data.instructions && !data.descriptions.some(Boolean)) return null;
    const made = el("details", { class: "guide", ontoggle: () => { guideOpen = made.open; } },
      el("summary", {}, "Instructions and labels"),
      data.instructions && foreign("p", data.instructions, { class: "text" }),
      el("dl", { class: "description" }, ...choices.flatMap((label) => [foreign("dt", label), foreign("dd", described(label) ?? "–")])));
    made.open = guideOpen;
    return made;
  }

  function votes(row) {
    const total = (data.several ? 1 : row.v.reduce((sum, [, weight]) => sum + weight, 0)) || 1;
    const won = row.l === null ? [] : partsOf(labels[row.l], data.several);
    const cells = row.v.flatMap(([label, weight]) => {
      const fill = el("div", { class: won.includes(labels[label]) ? "fill winner" : "fill" });
      fill.style.width = `${(100 * weight) / total}%`;
      return [
        foreign("span", nameOf(label), { class: "name" }),
        el("span", { class: "track", "aria-hidden": "true" }, fill),
        el("span", {}, data.several ? `${(100 * weight).toFixed(0)} %` : `${weight.toFixed(2)} (${((100 * weight) / total).toFixed(0)} %)`),
      ];
    });
    return el("div", { class: "votes" }, ...cells);
  }

  function neighbors(row) {
    const head = ["similarity", ...(blind ? [] : ["label"]), "text"].map((name) => el("th", { scope: "col", role: "columnheader" }, name));
    const body = row.k.map(([text, similarity, label, confidence]) => {
      const other = rowOf.get(text);
      const excerpt = cut(texts[text], 300) + (texts[text].length > 300 ? " …" : "");
      const cell = other
        ? el("button", { type: "button", dir: "auto", title: "go to this text", onclick: () => goTo(other) }, excerpt)
        : foreign("span", excerpt);
      return el("tr", { role: "row" }, el("td", { role: "cell", class: "figure" }, two(similarity)),
        !blind && el("td", { role: "cell" }, foreign("bdi", label === null ? "–" : nameOf(label)),
          confidence !== null && el("small", { class: "quiet" }, ` ${two(confidence)}`)),
        el("td", { role: "cell" }, cell));
    });
    // the roles are said, as a narrow screen shows the rows as something else than a table's
    return el("table", { role: "table" }, el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...head)),
      el("tbody", { role: "rowgroup" }, ...body));
  }

  function factsOf(row) {
    const own = !row.a ? (data.only ? null : "nothing: it was not asked, or its call failed")
      : row.o !== null ? `${nameOf(row.o)}${row.f === null ? "" : ` (confidence ${two(row.f)})`}`
      : `nothing usable${row.d ? `: ${cut(row.d, 300)}` : ""}`;
    return [
      ["label", data.only && row.l === row.o ? null : `${nameOf(row.l)}${SOURCES[row.g] ? `, by ${SOURCES[row.g]}` : ""}`],
      // who chooses among runs must not know which of them said what
      ["the LLM said", data.review?.model === "" ? null : own],
      ["trust", row.t === null ? null : `${two(row.t)}${row.bt === null || row.b === null ? "" : `; ${two(row.bt)} for ${cut(labels[row.b], 100)}`}`],
      ["", row.t === null ? null : trustMeans(data)],
      ["trust by level", row.p.length < 2 && row.l !== null || !row.p.length ? null : row.p.map(([name, trust]) => `${cut(name, 100)} ${trust === null ? "–" : two(trust)}`).join(" > ")],
      ["votes", row.n > 1 ? `share ${two(row.s)}, margin ${two(row.m)}, ${many(row.n, "voter")}` : null],
      ["asked", row.c ? null : "until the winner was certain; the other neighbors were not asked"],
      ["reason", row.r],
      ["error", row.e],
    ].filter(([, value]) => value !== null);
  }

  return { wholeText, guide, votes, neighbors, factsOf };
}
