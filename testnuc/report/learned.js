// How often each strategy is right on the judged texts. What that proves, `learn` computes.

/** The judgments of a review as `learn` reads them: in order, up to the last one that is answered. */
function judgedOf(review, marks) {
  const { candidates, earlier, none_label: none } = review.context;
  const answers = review.items.map((item) => {
    const mark = marks.get(item.text);
    if (mark) return { said: true, label: mark.truth ?? none };
    return item.source === "referee" ? { said: true, label: item.answer ?? none } : { said: false, label: null };
  });
  const end = answers.findLastIndex(({ said }) => said) + 1;
  const found = earlier.map(([known, right]) => right.map((is) => known && is));
  review.items.slice(0, end).forEach((item, place) => {
    if (item.probability === null) return;
    const { label } = answers[place];
    found.push(candidates.map((name) => label !== null && item.candidates.some(([given, names]) => given === label && names.includes(name))));
  });
  return found;
}

/** What the page says of it; null: nothing yet. */
function learnedOf(review, marks) {
  const judged = judgedOf(review, marks);
  if (!judged.length) return null;
  const { candidates } = review.context;
  const right = candidates.map((_, c) => judged.filter((one) => one[c]).length);
  const leader = right.indexOf(Math.max(...right));
  return [el("strong", {}, `The LLM is right on ${whole(right[0])} of ${many(judged.length, "judged text")}.`), " ",
    leader ? `Ahead: ${candidates[leader]}, right on ${whole(right[leader])}. ` : "No other strategy is ahead. ",
    el("code", {}, "learn"), " trains a model on your judgments, and uses it where it is proved to be better."];
}
