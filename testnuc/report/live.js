// A page that `testnuc review` serves sends each judgment as it is made, and again until it is saved.
// `recordOf(text)`: what is sent of it, or null; `warn(fault)`: shows why nothing is saved, or "" if it is.
function liveOf({ recordOf, warn }) {
  const open = new Set(); // texts whose judgment is not sent yet
  let sending = null;
  let failing = false;

  function failed(fault) {
    failing = true;
    warn(fault.message);
  }

  async function post(where, body) {
    let reply;
    try {
      reply = await fetch(where, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    } catch {
      throw new Error("testnuc review has ended");
    }
    if (!reply.ok) throw new Error(await reply.text());
    if (failing) warn("");
    failing = false;
  }

  async function sendAll() {
    while (open.size) {
      const texts = [...open];
      open.clear();
      try {
        await post("judgments", texts.map(recordOf));
      } catch (fault) {
        for (const text of texts) open.add(text);
        failed(fault);
        await new Promise((then) => { setTimeout(then, 1_000); });
      }
    }
    sending = null;
  }

  return {
    isPending: () => sending !== null,
    send(text) {
      if (!recordOf(text)) return;
      open.add(text);
      sending ??= sendAll();
    },
    /** End the server; false: not all is saved. */
    async end() {
      try {
        await sending;
        await post("done", null);
        return true;
      } catch (fault) {
        failed(fault);
        return false;
      }
    },
  };
}
