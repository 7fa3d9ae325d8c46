// Choose the right label of a text: the candidates' labels by a digit, any other by a field that
// filters them as one types. `choose(label)` is called with a label, or null for none of them.
const FEW = 5; // labels that are all shown, in their own order; without candidates, as many as have a digit

/** The labels that have a button, and the key of each. */
function optionsOf(candidates, labels) {
  const shown = labels.length <= (candidates.length ? FEW : 9) ? labels : candidates;
  // a digit that is a label chooses that label
  const digits = labels.some((label) => /^\d$/.test(label));
  return shown.map((label, at) => ({ label, key: digits ? (/^\d$/.test(label) ? label : null) : at < 9 ? String(at + 1) : null }));
}

/** How well a label, or its description, fits what was typed; 0: not at all. */
function fit(typed, label, description) {
  const name = label.toLowerCase();
  if (name === typed) return 5;
  if (name.startsWith(typed)) return 4;
  const words = name.split(/[\s_\-/.:]+/);
  const parts = typed.split(/[\s_\-]+/).filter(Boolean);
  if (parts.every((part) => words.some((word) => word.startsWith(part)))) return 3;
  if (parts.every((part) => name.includes(part))) return 2;
  return description && parts.every((part) => `${name} ${description.toLowerCase()}`.includes(part)) ? 1 : 0;
}

function chooserOf({ options, labels, described, names, choose, save, leave, several = false }) {
  const none = { label: null, key: labels.includes("0") ? null : "0" };
  const buttons = [...options, none].map(({ label, key }) => el("button", {
    type: "button", class: "option", "aria-pressed": "false", "aria-keyshortcuts": key, onclick: () => choose(label),
  },
    key && el("kbd", {}, key),
    label === null ? el("span", { class: "name" }, several ? "No label applies" : "None of the labels") : foreign("span", cut(label, 200), { class: "name" }),
    label !== null && names(label) && foreign("small", names(label), { class: "by" }),
    label !== null && described(label) && foreign("small", described(label), { class: "description" })));
  const other = el("p", { class: "other", hidden: true });
  const group = el("div", { class: "options", role: "group", "aria-label": several ? "The right labels" : "The right label" }, ...buttons, other);
  const shown = options.map(({ label }) => label);
  if (labels.length <= shown.length) return { parts: [group], show, keys: keys() };

  const find = el("input", {
    id: "find", type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", "aria-expanded": "false",
    "aria-controls": "found", "aria-autocomplete": "list", "aria-keyshortcuts": "/",
    placeholder: `another of ${whole(labels.length)} labels`, oninput: filter, onfocus: filter, onkeydown: steer,
  });
  const found = el("ul", { id: "found", role: "listbox", "aria-label": "Labels", hidden: true });
  const box = el("div", { class: "find" }, el("label", { for: "find" }, "Another label ", el("kbd", {}, "/")), find, found);
  box.addEventListener("focusout", (event) => { if (!box.contains(event.relatedTarget)) close(); });
  let matches = [];
  let at = 0;

  function close() {
    found.hidden = true;
    find.setAttribute("aria-expanded", "false");
    find.removeAttribute("aria-activedescendant");
  }

  function filter() {
    const typed = find.value.trim().toLowerCase();
    matches = labels.map((label) => [fit(typed, label, described(label)), label]).filter(([score]) => typed === "" || score > 0);
    if (typed) matches.sort((a, b) => b[0] - a[0]); // stable: equals stay in the order of the set
    at = 0;
    draw();
  }

  function draw() {
    found.replaceChildren(...matches.map(([, label], place) => el("li", {
      role: "option", id: `found-${place}`, "aria-selected": String(place === at),
      // a press would take the focus away before the click
      onmousedown: (event) => event.preventDefault(),
      onclick: () => { choose(label); done(); },
    }, foreign("span", cut(label, 200)), described(label) && foreign("small", described(label)))));
    if (!matches.length) found.append(el("li", { role: "option", "aria-selected": "false", "aria-disabled": "true" }, "no label is like that"));
    found.hidden = false;
    find.setAttribute("aria-expanded", "true");
    if (matches.length) {
      find.setAttribute("aria-activedescendant", `found-${at}`);
      found.children[at].scrollIntoView({ block: "nearest" });
    } else {
      find.removeAttribute("aria-activedescendant");
    }
  }

  function done() {
    find.value = "";
    close();
    leave();
  }

  function steer(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps && matches.length) {
      at = (at + steps[event.key] + matches.length) % matches.length;
      draw();
    } else if (event.key === "Enter") {
      // nothing typed and nothing picked: what was chosen before is saved
      if (find.value.trim() !== "" || at > 0) {
        if (!matches.length) return;
        choose(matches[at][1]);
      }
      done();
      save();
    } else if (event.key === "Escape") {
      done();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** Show what is chosen: undefined, null for none of the labels, or a label; of several, their string. */
  function show(label) {
    const none_ = several ? label === "" : label === null;
    const chosen = label === undefined || label === null ? [] : partsOf(label, several);
    [...shown, null].forEach((name, place) => buttons[place].setAttribute("aria-pressed", String(name === null ? none_ : chosen.includes(name))));
    const rest = chosen.filter((name) => !shown.includes(name));
    other.hidden = !rest.length;
    other.replaceChildren(...rest.flatMap((name, place) => [place ? ", ✓ " : "✓ ", foreign("strong", name)]));
  }

  function keys() {
    return new Map([...options, none].filter(({ key }) => key !== null).map(({ key, label }) => [key, label]));
  }

  return { parts: [group, box], show, keys: keys(), find };
}
