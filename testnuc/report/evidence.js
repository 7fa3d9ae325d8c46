"use strict";
// What judged texts prove so far. The same numbers as testnuc/trust/evidence.py and candidates.py:
// tests/report/test_evidence_js.py runs both on the same cases. Sources and formulas are there.
const evidence = (() => {
  const ALPHA = 0.1;
  const TEACHABLE = 20;
  const SHRINK = 2;
  const BETS = [0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9];
  const GRID = [0, 1e-6, ...Array.from({ length: 96 }, (_, i) => 0.0025 + (i * (0.6 - 0.0025)) / 95)];

  /** Part of the mean that is known before each draw. */
  function knownOf(values, texts) {
    let sum = 0;
    return values.map((value) => {
      const before = sum / texts;
      sum += value;
      return before;
    });
  }

  /** Log of the most capital so far against "the mean over all texts is at most mu", for each mu. */
  function capital(values, draws, means) {
    if (!values.length) return means.map(() => 0);
    const { texts, probability, floor } = draws;
    const known = knownOf(values, texts);
    return means.map((mu) => {
      const logs = BETS.map(() => 0);
      let most = -Infinity;
      values.forEach((value, i) => {
        const seen = value / probability[i] / texts + known[i];
        const least = 1 / floor[i] / texts + Math.max(mu - known[i], 0);
        const move = Math.max((seen - mu) / least, -1);
        BETS.forEach((bet, b) => { logs[b] += Math.log1p(bet * move); });
        const top = Math.max(...logs);
        most = Math.max(most, Math.log(logs.reduce((sum, log) => sum + Math.exp(log - top), 0) / BETS.length) + top);
      });
      return most;
    });
  }

  /** Lowest mean on the grid that "at least" is refuted for. */
  function reach(values, draws, needed) {
    const against = capital(values.map((v) => -v), draws, GRID.map((mu) => -mu));
    const at = against.findIndex((log) => log >= needed);
    return at < 0 ? 1 : GRID[at];
  }

  /** The gain of a candidate over all texts, with bounds that hold with 1 - alpha each. */
  function gainOf(values, draws, alpha) {
    const m = values.length;
    if (!m) return { value: 0, low: -1, high: 1 };
    const needed = Math.log(1 / alpha);
    const above = capital(values, draws, GRID).map((log) => log >= needed);
    const fails = above.indexOf(false);
    let low = !above[0] ? -reach(values.map((v) => -v), draws, needed)
      : fails < 0 ? GRID[GRID.length - 1] : GRID[Math.max(0, fails - 1)];
    const high = reach(values, draws, needed);
    const known = knownOf(values, draws.texts);
    const seen = values.map((value, i) => value / draws.probability[i] / draws.texts + known[i]);
    const mean = seen.reduce((sum, x) => sum + x, 0) / m;
    const variance = seen.reduce((sum, x) => sum + (x - mean) ** 2, 0) / m / m;
    const part = mean ? Math.max(0, 1 - (SHRINK * variance) / mean ** 2) : 0;
    low = Math.min(low, high, mean * part > 0 ? Infinity : 0);
    const value = Math.min(Math.max(mean * part, Math.max(low, -1)), Math.min(high, 1));
    return { value, low, high };
  }

  /**
   * Compare candidates by judged texts: {probability, floor, known, right: [for each candidate]}.
   * `candidates` are [name, part of the error, whether taught models are made of it]; the first
   * gives the LLM's own labels. `sure` is the confidence that a candidate is better than these.
   */
  function choose(judged, candidates, texts) {
    const draws = { texts, probability: judged.map((j) => j.probability), floor: judged.map((j) => j.floor) };
    const taught = judged.filter((j) => j.known).length >= TEACHABLE;
    // models that `learn` makes of a candidate share the error, too
    const total = candidates.reduce((sum, [, share, made]) => sum + share * (taught && made ? 2 : 1), 0);
    const gains = candidates.map(([, share], c) => {
      if (!share) return { value: 0, low: 0, high: 0, sure: 0 };
      const values = judged.map((j) => (j.known ? Number(j.right[c]) - Number(j.right[0]) : 0));
      const gain = gainOf(values, draws, (ALPHA * share) / total);
      const doubt = Math.exp(-capital(values, draws, [0])[0]) * (total / share);
      return { ...gain, sure: Math.max(0, 1 - doubt) };
    });
    let best = 0;
    const above = (a, b) => a.low - b.low || a.value - b.value;
    gains.forEach((gain, c) => { if (above(gain, gains[best]) > 0) best = c; });
    const count = (c) => judged.filter((j) => j.known && j.right[c]).length;
    let leader = best;
    // not proved yet: the one that is ahead
    const ahead = (a, b) => gains[a].value - gains[b].value || count(a) - count(b);
    if (!best) gains.forEach((_, c) => { if (count(c) > count(0) && ahead(c, leader) > 0) leader = c; });
    return { gains, best, leader, taught, before: count(0), after: count(leader) };
  }

  return { capital, gainOf, choose, needed: 1 - ALPHA };
})();
