"""Answer a review: on a page that is served to this machine alone, or in the terminal."""

import asyncio
import os
import secrets
import sys
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from testnuc._base.display import one_line
from testnuc._base.jsonl import bytes_of
from testnuc._base.loop_thread import run_to_end
from testnuc.cli.reading import to_stderr
from testnuc.errors import InvalidInputError, printable
from testnuc.report import render, write
from testnuc.results import Results
from testnuc.trust.review import Review, ReviewItem

_HELP = "a label or its beginning, 0 = none of these, n = skip, u = back, q = save and quit"
#: The keys of the page; the second for labels of which one is "0".
_NONE = ("0", "-")
#: Labels that are listed at the start; when the beginning of a label is ambiguous.
_ALL = 30
_LISTED = 8


class ReviewFile:
    """The file of a review that is judged; what somebody else writes to it meanwhile is kept."""

    def __init__(self, review: Review, path: str) -> None:
        self._review, self.path = review, path
        #: What this process read or wrote; empty where there is no file.
        self.held = self._content()

    def save(self) -> None:
        """Write the review, unless somebody else has written the file."""
        if self._content() not in {b"", self.held}:
            raise InvalidInputError(
                f"{self.path} was changed meanwhile, perhaps by another `testnuc review`, and is "
                "kept; end this one, and judge the rest there"
            )
        self._review.save(self.path)
        self.held = self._content()

    def _content(self) -> bytes:
        return bytes_of(self.path) if Path(self.path).exists() else b""


def answer(review: Review, path: str) -> None:
    """Ask for the label of each open item, in order; saves to `path` after each answer."""
    # the numbers of candidates would be ambiguous among labels such as "1"
    numbered = not any(map(str.isdecimal, review.labels))
    file, at = ReviewFile(review, path), _next_open(review, 0)
    # of a joined review, the texts between the open ones are agreed on
    before = [*range(at)] if review.context.judges == 1 else []
    hint = _hint(review, numbered=numbered)
    to_stderr(hint)
    while at < len(review):
        item = review[at]
        shown = _show(item, numbered=numbered, of=len(review))
        try:
            said = input("label> ").strip()
        except (EOFError, KeyboardInterrupt):
            to_stderr("")
            break
        # a label may be called as a key is
        key = None if said in review.labels else said
        if key == "q":
            break
        if key in {"", "?"}:
            to_stderr(hint)
            continue
        if key == "u":
            if not before:
                to_stderr("this is the first text")
            at = before.pop() if before else at
            continue
        if key == "n":
            to_stderr("skipped")
        else:
            try:
                label = (_labels if review.multilabel else _label)(said, review, shown)
            except InvalidInputError as problem:
                to_stderr(str(problem))
                continue
            review.answer(at, label)
            file.save()
            to_stderr(review[at].answer or "none of these")
        before.append(at)
        at = _next_open(review, at + 1)


def _hint(review: Review, *, numbered: bool) -> str:
    """Return what can be typed, and the labels."""
    # those of a blind review have no candidates
    number = "a number, " * any(item.candidates for item in review)
    hint = f"{number}{_HELP}" if numbered else _HELP.replace("0 =", "- =")
    several = "several labels, separated by commas; each " if review.multilabel else ""
    many = f"{len(review.labels):,}; what you type lists those that begin so"
    names = ", ".join(review.labels) if len(review.labels) <= _ALL else many
    return f"{several}{hint}, Enter = this help\nlabels: {names}"


def _next_open(review: Review, start: int) -> int:
    """Return the position of the first item without an answer, from `start` on."""
    return next((at for at in range(start, len(review)) if review[at].source is None), len(review))


def _show(item: ReviewItem, *, numbered: bool, of: int) -> list[str]:
    """Print an item; returns the labels that a number chooses."""
    labels = [label for label, _ in item.candidates if label is not None]
    text = "\n".join(map(printable, item.text.splitlines()))
    to_stderr(f"\n{item.index + 1} of {of}: {text}")
    for near in item.neighbors[:3]:
        label = f", {near.label}" if near.label else ""
        to_stderr(f"    near ({near.similarity:.2f}{label}): {one_line(near.text, 80)}")
    for number, label in enumerate(labels, 1):
        to_stderr(f"  {number} = {label}" if numbered else f"  {label}")
    for name, answer in item.said:
        to_stderr(f"    {name} said {answer or 'none of these'}")
    if item.source is not None:
        to_stderr(f"  answered: {item.answer or 'none of these'}")
    return labels if numbered else []


def _label(said: str, review: Review, shown: list[str]) -> str | None:
    """Return the label that a line names: whole, by its number, or by its beginning."""
    if said in review.labels:
        return said
    if said in _NONE:
        return None
    if shown and said.isdecimal():
        if not 1 <= int(said) <= len(shown):
            raise InvalidInputError(f"there is no number {said}; give 1 to {len(shown)}")
        return shown[int(said) - 1]
    start = said.casefold()
    found = [label for label in review.labels if label.casefold().startswith(start)]
    exact = [label for label in found if label.casefold() == start]
    if len(exact) == 1 or len(found) == 1:
        return (exact or found)[0]
    if not found:
        raise InvalidInputError(f"no label begins with {said!r}")
    more = "" if len(found) <= _LISTED else f" and {len(found) - _LISTED} more"
    raise InvalidInputError(f"{said!r} begins {', '.join(found[:_LISTED])}{more}; type more of it")


def _labels(said: str, review: Review, shown: list[str]) -> list[str]:
    """Return the labels, separated by commas, of a text that can have several."""
    if said in _NONE and said not in review.labels:
        return []
    parts = [said] if said in review.labels else said.split(",")
    names = [_label(part.strip(), review, shown) for part in parts]
    if None in names:
        raise InvalidInputError(f"{said!r} names labels and none; give either")
    return [name for name in names if name is not None]


_HOST = "127.0.0.1"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Content-Type": "text/html; charset=utf-8",
}


def judge_on_page(review: Review, path: str, *, open_page: bool | None) -> bool:
    """Let a person judge a review in the browser, until Done or Ctrl-C; saves each judgment.

    Returns whether a browser opened; with `open_page` None, one is opened if this terminal can.
    """
    if open_page is None:
        # a browser in the terminal would take its place
        graphical = any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        open_page = sys.stderr.isatty() and (sys.platform != "linux" or graphical)
    if not open_page:
        return False
    shown, page = True, _Page(review, path)
    try:
        shown = run_to_end(page.until_done())
    except KeyboardInterrupt:
        # on a new line, after ^C
        to_stderr("")
    if shown:
        page.save()
    return shown


def judge(
    review: Review, path: str, given: SimpleNamespace, then: str, results: Results | None = None
) -> bool:
    """Let a person judge a review, in the terminal if wanted, else on the page.

    If no browser opens, write the page, say that the command `then` follows, and return False.
    """
    if given.by_hand:
        answer(review, path)
    elif not judge_on_page(review, path, open_page=given.open_page):
        write_page(review, path, results, then)
        return False
    return True


def write_page(review: Review, path: str, results: Results | None, then: str) -> None:
    """Write the page of a review beside its file, for a browser that this command cannot open."""
    page = Path(path).with_suffix(".html")
    name = Path(path).name
    write(results, page, review=review, then=then, file=name, title=f"testnuc: {name}")
    to_stderr(
        f"to judge them in the terminal: testnuc review {path} --answer\n"
        f"or open {page} in a browser, move the {name} that it saves here, and run: {then}"
    )


class _Page:
    """The server of the page.

    Other programs and pages on this machine do not know the token, and another site cannot reach
    the page under a name of its own, because host and origin are checked.
    """

    def __init__(self, review: Review, path: str) -> None:
        self._review = review
        self._file = ReviewFile(review, path)
        # what a judgment replaces, and what is there again without it
        self._before = list(review)
        #: Whether judgments are not in the file: the disk may be full.
        self._unsaved = not self._file.held
        self._origin = ""
        self._seen = False
        self._ended: asyncio.Future[bool]

    async def until_done(self) -> bool:
        """Serve the page and open it; returns whether a browser opened."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        base = f"/{secrets.token_urlsafe(16)}/"
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(base, self._page)
        app.router.add_post(f"{base}judgments", self._judged)
        app.router.add_post(f"{base}done", self._done)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, _HOST, 0).start()
            self._origin = f"http://{_HOST}:{runner.addresses[0][1]}"
            url = self._origin + base
            to_stderr(f"opening {url} in the browser; press Done there at the end, or Ctrl-C here")
            # some browsers end this call only when they are closed
            threading.Thread(target=self._open, args=(loop, url), daemon=True).start()
            return await self._ended
        finally:
            await runner.cleanup()

    def _open(self, loop: asyncio.AbstractEventLoop, url: str) -> None:
        shown = False
        with suppress(webbrowser.Error):
            shown = webbrowser.open(url)
        if not shown:
            # the loop may be closed by now
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, False)

    def _end(self, shown: bool) -> None:
        # a page that was seen is open, whatever the browser's command returned
        if not self._ended.done() and (shown or not self._seen):
            self._ended.set_result(shown)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin", self._origin if request.method == "GET" else "")
        if f"http://{request.host}" != self._origin or origin != self._origin:
            return web.Response(status=403, text="this page is for its own machine")
        return await handler(request)

    async def _page(self, _: web.Request) -> web.Response:
        self._seen = True
        name = Path(self._file.path).name
        page = render(None, review=self._review, file=name, title=f"testnuc: {name}", live=True)
        content = page.encode("utf-8", "replace")
        return web.Response(body=content, headers=_HEADERS)

    async def _judged(self, request: web.Request) -> web.Response:
        """Take a list of [position, whether it is judged, the answer]."""
        review, self._unsaved = self._review, True
        try:
            for place, is_judged, said in orjson.loads(await request.read()):
                before = self._before[place]
                if is_judged:
                    review.answer(place, said)
                elif before.source != "referee":
                    review.withdraw(place)
                else:
                    review.answer(place, review.as_given(before.answer), "referee")
        except (InvalidInputError, TypeError, ValueError, IndexError) as exc:
            return web.Response(status=400, text=str(exc))
        return self._saved()

    def save(self) -> None:
        """Save what is not saved yet."""
        if self._unsaved:
            self._file.save()
            self._unsaved = False

    def _saved(self) -> web.Response:
        try:
            self.save()
        except InvalidInputError as exc:
            return web.Response(status=507, text=str(exc))
        return web.Response(status=204)

    async def _done(self, request: web.Request) -> web.StreamResponse:
        response = self._saved()
        if response.status == 204:
            # the page gets the response before the server is closed
            await response.prepare(request)
            await response.write_eof()
            self._end(shown=True)
        return response
