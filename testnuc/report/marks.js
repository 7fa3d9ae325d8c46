// The judgments: they belong to a text and a question (labels and instructions), not to a page, so
// that a page that is made again has them. A mark is {truth: the right label, null = none of the
// labels; label: the one that was shown; settled: judged after people differed}.
// A page that is served sends them instead: `send` is called with the text of each that changes.
const marksOf = (labels, isKnown, several = false, send = null, instructions = null) => {
  const hash = (text) => {
    // 53 bits, public domain (cyrb53)
    let [a, b] = [0xdeadbeef, 0x41c6ce57];
    for (let i = 0; i < text.length; i++) {
      const unit = text.charCodeAt(i);
      a = Math.imul(a ^ unit, 2654435761);
      b = Math.imul(b ^ unit, 1597334677);
    }
    a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
    b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
    return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
  };
  const question = JSON.stringify([...labels].sort().concat(instructions || []));
  const scope = `testnuc:${several ? "several:" : ""}${isKnown ? hash(question) : "any"}:`;
  const all = new Map();
  // the storage may be full or forbidden: marks then live as long as the page
  const made = { all, kept: true, saved: true, load, set, remove };

  function load() {
    try {
      for (let i = 0; i < localStorage.length; i++) {
        const key = localStorage.key(i);
        if (!key.startsWith(scope)) continue;
        const { text, ...mark } = JSON.parse(localStorage.getItem(key));
        if (mark.truth === null || !isKnown || partsOf(mark.truth, several).every((label) => labels.includes(label))) all.set(text, mark);
      }
    } catch {
      made.kept = false;
    }
  }

  function stored(change) {
    made.saved = false;
    try {
      change(localStorage);
      made.kept = true;
    } catch {
      made.kept = false;
    }
  }

  function set(text, mark) {
    all.delete(text); // the order is that of judging
    all.set(text, mark);
    if (send) send(text);
    else stored((storage) => storage.setItem(scope + hash(text), JSON.stringify({ text, ...mark })));
  }

  function remove(text) {
    all.delete(text);
    if (send) send(text);
    else stored((storage) => storage.removeItem(scope + hash(text)));
  }

  if (!send) load();
  return made;
};

// Where a text can have several labels they are one string, in the order of the label set; "" = none.
const SEPARATOR = "; ";
function partsOf(label, several) {
  return !several ? [label] : label ? label.split(SEPARATOR) : [];
}

// Files of judgments. A record is {text, label: the one shown, own: the LLM's, trust, truth}.
const formats = (() => {
  // half a character, of a text that was refused, has no place in a file
  const whole = (text) => text.replace(/\p{Surrogate}/gu, "\ufffd");
  const json = (value) => `${JSON.stringify(value, null, 1)}\n`;
  const type = "application/json";

  /** A review of chosen texts, as `Review.load` reads it. */
  function review(records, { labels, model, texts, several }) {
    const said = (label) => (several && label !== null ? partsOf(label, true) : label);
    return {
      format: "testnuc.review", version: 1, model: model ?? "", labels, texts, ...(several ? { multilabel: true } : {}),
      items: records.map(({ text, own, label, trust, truth }) => ({
        text: whole(text), own_label: said(own),
        candidates: label === null ? [] : partsOf(label, several).map((one) => [one, ["the label shown"]]),
        trust, neighbors: [], goal: "correct", probability: null, floor: null, answer: said(truth), source: "person",
      })),
    };
  }

  function csv(records, { several }) {
    // a spreadsheet runs what begins like a formula; read_marks takes the ' away again
    const cell = (value) => {
      const text = value === null ? "" : String(value);
      return `"${(/^'*(?:[=@\t\r]|[+-](?![0-9.,]*$))/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
    };
    const said = (label) => (several && label !== null ? JSON.stringify(partsOf(label, true)) : label);
    const rows = records.map(({ text, label, truth }) => [whole(text), said(label), truth !== null && truth === label, said(truth)]);
    return [["text", "label", "right", "right_label"], ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
  }

  /** Tasks of Label Studio: <Text name="text" value="$text"/>, <Choices name="label" toName="text">. */
  function studio(records, { model, several }) {
    const result = (label) => {
      const choices = label === null ? [] : partsOf(label, several);
      return choices.length ? [{ from_name: "label", to_name: "text", type: "choices", value: { choices } }] : [];
    };
    return records.map(({ text, label, trust, truth }) => ({
      data: { text: whole(text) },
      annotations: [{ result: result(truth) }],
      predictions: label === null ? [] : [{ model_version: model ?? "testnuc", score: trust, result: result(label) }],
    }));
  }

  /** Records of Argilla, which refuses empty lists: log them with mapping={"answer": "label.response"}. */
  const argilla = (records, { several }) => {
    const said = (label) => (several ? (label ? partsOf(label, true) : null) : label);
    return records.map(({ text, label, truth }) => ({ text: whole(text), label: said(label), answer: said(truth) }));
  };

  /** The judgments in a file, as [text, label] pairs; undefined: not a file of judgments. */
  function read(content) {
    const given = JSON.parse(content);
    const isText = (mark) => typeof mark?.text === "string";
    if (Array.isArray(given)) {
      const isRight = (label) => typeof label === "string" || Array.isArray(label);
      return given.filter((mark) => isText(mark) && isRight(mark.right_label)).map((mark) => [mark.text, mark.right_label]);
    }
    if (given?.format !== "testnuc.review" || !Array.isArray(given.items)) return undefined;
    return given.items.filter((item) => isText(item) && item.source === "person").map((item) => [item.text, item.answer]);
  }

  return {
    read,
    review: (records, about) => json(review(records, about)),
    all: {
      csv: { name: "marks.csv", type: "text/csv;charset=utf-8", make: csv },
      studio: { name: "label-studio.json", type, make: (...given) => json(studio(...given)) },
      argilla: { name: "argilla.json", type, make: (...given) => json(argilla(...given)) },
    },
    json,
  };
})();
