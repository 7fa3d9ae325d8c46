// What was learned so far from the judgments of a review, by the numbers of `learn`.

/** The judgments of a review as `learn` reads them: in order, up to the last one that is answered. */
function judgedOf(review, marks) {
  const { candidates, earlier, none_label: none } = review.context;
  const answers = review.items.map((item) => {
    const mark = marks.get(item.text);
    if (mark) return { said: true, label: mark.truth ?? none };
    return item.source === "referee" ? { said: true, label: item.answer ?? none } : { said: false, label: null };
  });
  const end = answers.findLastIndex(({ said }) => said) + 1;
  const found = earlier.map(([probability, floor, known, right]) => ({ probability, floor, known, right }));
  review.items.slice(0, end).forEach((item, place) => {
    if (item.probability === null) return;
    const { label } = answers[place];
    const right = candidates.map(([name]) => label !== null && item.candidates.some(([given, names]) => given === label && names.includes(name)));
    found.push({ probability: item.probability, floor: item.floor, known: label !== null, right });
  });
  return found;
}

/** What the page says of it; null: nothing yet. */
function learnedOf(review, marks) {
  const { candidates } = review.context;
  const drawn = judgedOf(review, marks);
  if (!drawn.length) return null;
  const found = evidence.choose(drawn, candidates, review.texts);
  const name = candidates[found.leader][0];
  const sure = found.gains[found.leader].sure;
  const counts = `${found.leader ? `After: ${whole(found.after)} right, before: ${whole(found.before)}` : `${whole(found.before)} right`}, of ${many(drawn.length, "judged text")}.`;
  const percent = `${Math.floor(100 * sure)} %`;
  const points = (part) => `${part < 0 ? "-" : "+"}${Math.abs(100 * part).toFixed(1)}`;
  const { value, low, high } = found.gains[found.leader];
  return [el("strong", {}, counts), " ",
    found.best ? `Best: ${name}. ${percent} sure; expected gain ${points(value)} points over all texts (from ${points(low)} to ${points(high)}).`
      : found.leader ? `Ahead: ${name}. ${sure > 0 ? `${percent} sure` : "Not sure yet"}; ${100 * evidence.needed} % decides.`
      : "The LLM's own labels are not beaten so far.",
    ...(found.taught ? [" ", el("code", {}, "learn"), " also tries models that your judgments teach."] : [])];
}
