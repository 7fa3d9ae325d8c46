"""The command line. Each command imports its module when it runs, so that --help is fast."""

import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import typer

from testnuc._version import __version__
from testnuc.cli.options import (
    CALL_OPTIONS,
    DISCOVERY,
    EVIDENCE_OPTIONS,
    TEXT_COLUMN,
    argument,
    once,
    output_to,
    rare,
    reads,
    runs,
    settings_of,
    writes,
)
from testnuc.cli.settings import FILE, UNNAMED, misspelled, read_settings, source_of
from testnuc.errors import ConfigurationError, InvalidInputError, StoreError, TestNUCError

__all__ = ["app", "main"]

app = typer.Typer(
    name="testnuc",
    help="Label texts with LLMs; each label is voted on by the text's nearest unlabeled neighbors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
store = typer.Typer(help="Export or import a store, erase texts, list runs.", no_args_is_help=True)
app.add_typer(store, name="store")
batch = typer.Typer(help="List, resume or cancel the batch jobs of a store.", no_args_is_help=True)
app.add_typer(batch, name="batch")
labels = typer.Typer(help="Check the label set.", no_args_is_help=True)
app.add_typer(labels, name="labels")

# parameters of several commands
_RESULTS_OR_STORE = argument(
    "RESULTS|STORE", "A file written by `classify -o` (.csv, .jsonl or .parquet), or a store."
)
_SOURCES = argument(
    "RESULTS|STORE|REVIEW..",
    "A file written by `classify -o`, a store; or reviews (.json) to continue or join.",
)
_JUDGED = argument(
    "[REVIEW|MARKS]..",
    "Files of the page, also of several people, or edited RESULTS; default: the newest here.",
    None,
)
_REVIEWS = typer.Argument(
    None, help="Of several people: agreement is added.", metavar="[REVIEW]..", show_default=False
)
_DRY_RUN = once(False, "--dry-run", help="Estimate the cost without sending anything.")
_OVERWRITE = once(False, "--overwrite", help="Replace an existing output.", rich_help_panel="Files")
_STORE = argument("STORE", "Path of an SQLite store, or postgresql://..")
_FILE = argument("FILE", "A .jsonl or .parquet file.")
_MERGE = once([], help="'LABEL = OTHER': texts with LABEL get the label OTHER; can be repeated.")
_PROTECT = typer.Option(
    None,
    metavar="LABEL",
    help="Take this label from no text; can be repeated; '': none is protected.",
    show_default="as before",
)
_Period = Literal["year", "quarter", "month", "week", "day"]
_BY = once(None, help="Count by the values of this column, and compare them.")
_PERIOD = once(None, help="The column of --by has dates: count by periods.")
_LEVEL = typer.Option(None, help="Of labels in a tree, 1 = the top.", show_default="whole labels")
_PLOT_LABEL = once(
    None,
    metavar="LABEL",
    help="Show this label in the figure; can be repeated.",
    show_default="the most frequent",
)
_RUNS = argument("RESULTS..", "Files of results of the same texts; or texts, with --model.")
_MODELS = once([], "--model", help="With a file of texts: a model; give two or more.")
_OPEN = typer.Option(
    None, "--open/--no-open", help="Open the page in a browser.", show_default="if it can"
)
_IDS = typer.Argument(
    None, help="Start of an id, or the provider's id.", metavar="[ID]..", show_default=False
)
_ADDRESS = typer.Option(None, help="Server of batches; needed if the store names one elsewhere.")
_referee = partial(typer.Option, rich_help_panel="Referee")
# labels, where no option names them
_OF_HEAD, _OF_FILES = "the labels of --head", "those of the files"
_OF_RUN = "the labels in the store or the file, if it holds them"


def _version(asked: bool) -> None:
    if asked:
        python = ".".join(map(str, sys.version_info[:3]))
        print(f"testnuc {__version__} (Python {python})")
        raise typer.Exit


@app.callback()
def settings(
    context: typer.Context,
    config: str | None = typer.Option(
        None,
        help="A settings file; default: testnuc.toml in the current folder, if there is one.",
        envvar="TESTNUC_CONFIG",
        show_envvar=False,
    ),
    version: bool = typer.Option(  # noqa: ARG001
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
) -> None:
    """Read defaults of options from the environment and the settings file."""
    if config is None:
        context.obj = UNNAMED
    if config is not None or Path(FILE).is_file():
        context.default_map = read_settings(Path(config or FILE), _SETTINGS)
    for note in misspelled(os.environ, _SETTINGS):
        print(f"note: {note}", file=sys.stderr)


@runs(app, "demo:run")
def demo() -> None:
    """Label the messages of a web shop on this machine, without a key or a network."""


@runs(app, "classify:run", "run", labels=_OF_HEAD)
def classify(
    file: str = argument(
        "FILE",
        "Texts: .csv, .tsv, .xlsx, .json, .jsonl, .parquet, .txt (one a line), or - (stdin).",
    ),
    output: str | None = output_to("A file of these kinds; default or -: JSON Lines to stdout."),
    lane: Literal["live", "batch"] = typer.Option(
        "live",
        help="live, or batch: the provider's batch API, at half the price, within a day; see "
        "--store.",
        rich_help_panel="Batches",
    ),
    rest: Literal["batch", "live", "error"] = rare(
        "batch",
        help="Requests that a batch leaves unanswered: retry in another (batch), send live, "
        "or error.",
    ),
    referee: str | None = _referee(
        None, help="A better model, which judges 100 texts, then labels the least trusted."
    ),
    escalate: str | None = _referee(
        None,
        help="Fraction of the texts that the referee labels, such as 10%.",
        show_default="10% with --referee, of one label",
    ),
    full: bool = typer.Option(
        False, "--full", help="Write all columns; to .jsonl also neighbors, votes and usage."
    ),
    reuse: bool | None = once(
        None,
        help="Where labels changed: ask only about texts that could have a new one.",
        hidden=True,
    ),
    dry_run: bool = _DRY_RUN,
    show_prompt: bool = once(
        False, "--show-prompt", help="Print the prompt of the first text without sending anything."
    ),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Label the texts of a file; they vote on each other."""


@runs(app, "evaluate:run", "run", labels="the labels in FILE")
def evaluate(
    file: str = argument("FILE", "Labeled texts, as for classify; or results with correct labels."),
    label_column: str = typer.Option("label", help="Column or field with the correct label."),
    output: str | None = output_to("A .json file for all scores."),
    dry_run: bool = _DRY_RUN,
    overwrite: bool = _OVERWRITE,
) -> None:
    """Measure accuracy with and without the vote, on texts with known labels."""


@runs(app, "judging:diagnose", *(*CALL_OPTIONS, "policy", "min_trust"), labels=_OF_RUN)
def diagnose(
    source: str = _RESULTS_OR_STORE,
    plot: str | None = writes(None, help="A .png, .svg or .pdf file for the figure."),
) -> None:
    """Estimate from stored predictions whether a vote would help; makes no call."""


@runs(app, "judging:review", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def review(
    sources: list[str] = _SOURCES,
    n: int = once(50, "-n", help="Number of texts to draw.", min=1),
    goal: Literal["decide", "certify", "count", "correct"] | None = once(
        None,
        help="decide: disputed labels; certify, count: at random; correct: least trusted.",
        show_default="mostly decide",
    ),
    output: str | None = output_to("A .json file.", show_default="review.json, review-2.json, .."),
    by_hand: bool = once(False, "--answer", help="Judge the texts in the terminal."),
    blind: bool = once(False, "--blind", help="Do not show what the LLM and candidates say."),
    judge: str | None = once(None, help="Who judges; the page and the agreement name them."),
    judges: int | None = once(
        None, min=1, help="A file for each of these judges; a tenth of texts is in all."
    ),
    open_page: bool | None = _OPEN,
) -> None:
    """Draw texts, let a person judge them on a page, and learn from that; makes no call."""


@runs(app, "judging:learn", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def learn(
    source: str = _RESULTS_OR_STORE,
    judged: list[str] | None = _JUDGED,
    at_random: bool = once(False, "--at-random", help="The marked texts were drawn at random."),
    protect: list[str] | None = _PROTECT,
    output: str | None = output_to("A file for all texts with the labels that follow."),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Learn from judged texts how to label, and what trust means; later runs use it."""


@runs(app, "judging:certify", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def certify(
    source: str = _RESULTS_OR_STORE,
    accuracy: float = typer.Option(0.9, help="Minimum accuracy of the certified labels."),
    confidence: float = typer.Option(0.9, help="Probability that the certificate holds."),
    level: int | None = _LEVEL,
    label: str | None = typer.Option(
        None, help="Of texts with several labels: certify this one.", show_default="all of a text"
    ),
    output: str | None = output_to("A file for the certified texts and labels."),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Find the trust above which labels are right, as proved by the judged texts."""


@runs(app, "count:run", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def count(
    source: str = _RESULTS_OR_STORE,
    by: str | None = _BY,
    period: _Period | None = _PERIOD,
    compare: tuple[str, str] | None = once(
        None, metavar="GROUP GROUP", help="Compare these two groups of --by with each other alone."
    ),
    confidence: float = typer.Option(0.95, help="Probability that an interval holds."),
    together: bool = once(False, "--together", help="All intervals hold together, not each alone."),
    level: int | None = _LEVEL,
    judge_error: float = once(0.0, help="Fraction of the judgments that may be wrong."),
    output: str | None = output_to("A .csv or .json file for the counts."),
    plot: str | None = writes(None, help="A .png, .svg or .pdf file for the figure."),
    plot_label: list[str] | None = _PLOT_LABEL,
    dark: bool = once(False, "--dark", help="The figure is light on dark."),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Count labels: shares with intervals, corrected by the judged texts; makes no call."""


@runs(app, "report:describe", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def describe(
    source: str = _RESULTS_OR_STORE,
    reviews: list[str] | None = _REVIEWS,
    output: str | None = output_to("A .md file."),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Say how labels were made, for a methods section: model, prompt, judgments; makes no call."""


@runs(app, "labels:discover_labels", *DISCOVERY, labels="none is kept")
def discover(
    file: str = argument("FILE", "Texts, as for classify."),
    n: int | None = typer.Option(
        None, "-n", min=2, help="About how many labels.", show_default="by the number of texts"
    ),
    tree: bool = once(False, "--tree", help="Put new labels below topics: two levels."),
    output: str = output_to("A .yaml or .json file.", "labels.yaml"),
    dry_run: bool = _DRY_RUN,
    overwrite: bool = _OVERWRITE,
) -> None:
    """Find labels for texts that have none, and write a label file."""


@runs(labels, "labels:check", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def check(
    source: str = _RESULTS_OR_STORE,
    merge: list[str] = _MERGE,
    output: str | None = output_to("A file for all texts with merged labels, beside a label file."),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Find labels that are confused, never given, or missing; makes no call."""


@runs(app, "judging:distill", *CALL_OPTIONS, "min_trust", labels=_OF_RUN)
def distill(
    source: str = _RESULTS_OR_STORE, output: str = output_to("A .head file.", "labels.head")
) -> None:
    """Train a classifier of embeddings on the labels: a file that needs no LLM; makes no call."""


@runs(app, "judging:unlearn", *EVIDENCE_OPTIONS, labels=_OF_RUN)
def unlearn(source: str = _RESULTS_OR_STORE, text_column: str = TEXT_COLUMN) -> None:
    """Undo `learn`: drop what was learned from judged texts."""


@runs(app, "evaluate:chosen", "Vote", "Fewer calls", "model", "multilabel", labels=_OF_FILES)
def choose(
    files: list[str] = _RUNS,
    models: list[str] = _MODELS,
    sample: int = once(500, help="With --model: texts, at random, that each labels.", min=20),
    cheapest: bool = once(False, "--cheapest", help="With --model: the cheapest that will do."),
    dry_run: bool = _DRY_RUN,
    n: int = once(50, "-n", help="Number of texts to judge at a time.", min=1),
    margin: float = once(2.0, help="Points of accuracy that do not matter.", min=0, max=100),
    among: int | None = once(None, help="Texts of which these are a random sample.", min=1),
    review: str = writes("choose.json", help="The file of the texts to judge."),
    by_hand: bool = once(False, "--answer", help="Judge the texts in the terminal."),
    open_page: bool | None = _OPEN,
) -> None:
    """Choose the best of several models or prompts, by judgments where they differ."""


@runs(app, "evaluate:compare_files")
def compare(
    first: str = argument("A", "A file of results."),
    second: str = argument("B", "Another one."),
    gold: str | None = once(None, help="Column with the correct label, in A or B."),
    text_column: str = TEXT_COLUMN,
    label_column: str = typer.Option("nuc_label", help="Column with the labels to compare."),
    examples: int = typer.Option(2, help="Texts to show of each pair of labels.", min=0),
) -> None:
    """Show where two files of results differ, and which is more accurate."""


@runs(app, "serve:run", "run", labels=_OF_HEAD)
def serve(
    host: str = typer.Option("127.0.0.1", help="Non-loopback addresses require a token."),
    port: int = typer.Option(8080, help="0: any free port."),
    token_file: str | None = reads(
        None, help="Tokens of callers: a line each, or NAME TOKEN; or set TESTNUC_TOKEN."
    ),
    pool: str | None = reads(None, help="A file of unlabeled texts: the pool of neighbors."),
    join_pool: bool = typer.Option(True, help="Keep labeled texts, in the pool of neighbors."),
    sets: str | None = once(
        None, help="A .toml file of several label sets, each a table: its --labels, --store, .."
    ),
    cors_origin: str | None = typer.Option(
        None, help="Origins whose pages may send requests, separated by commas; *: all."
    ),
    access_log: bool = typer.Option(True, help="Log each request, without its texts, to stderr."),
    log_format: Literal["text", "json"] = rare("text", help="Lines of the log: text, or JSON."),
    audit: str | None = typer.Option(
        None, help="Set texts aside in the store, at random, for `testnuc audit`: such as 20/week."
    ),
    max_texts: int = rare(1_000, help="Maximum number of texts in a request."),
    max_text_chars: int = rare(32_000, help="Maximum number of characters in a text."),
    max_body: int = rare(4 * 1024 * 1024, help="Maximum size of a request in bytes."),
    max_pending: int = rare(4_096, help="Texts in progress, at most; further requests get 429."),
    request_timeout: float = rare(300.0, help="Seconds until a request times out."),
    grace: float = rare(0.0, help="Seconds after SIGTERM in which requests are still accepted."),
    drain_timeout: float = rare(30.0, help="Seconds after that for requests to finish."),
) -> None:
    """Serve labels over HTTP: POST /v1/classify."""


@runs(app, "count:audit")
def audit(
    place: str = _STORE,
    review: str = writes("audit.json", help="The file of the texts to judge."),
    by_hand: bool = once(False, "--answer", help="Judge the texts in the terminal."),
    open_page: bool | None = _OPEN,
    label_set: str | None = once(
        None, "--labels", help="Of several label sets in the store: this, a file or a,b."
    ),
    since: str | None = once(
        None, help="Look for changes from this week on, such as 2026-W07; later runs do, too."
    ),
    output: str | None = output_to("A .csv or .json file for the shares of labels by week."),
    overwrite: bool = _OVERWRITE,
) -> None:
    """Judge texts that `serve --audit` set aside: accuracy and shares by week, and alarms."""


@runs(app, "report:run", *CALL_OPTIONS, labels=_OF_RUN)
def report(
    source: str = argument(
        "RESULTS|STORE",
        "A file written by `classify -o` (a .jsonl with --full holds all details), or a "
        "store, with the options of its run.",
    ),
    output: str = output_to("A .html file; of a summary also .md.", "report.html"),
    summary: bool = once(
        False, "--summary", help="One page: accuracy, certificate, shares (--by), what is next."
    ),
    title: str | None = once(None, help="Default: the name of the file."),
    by: str | None = _BY,
    period: _Period | None = _PERIOD,
    overwrite: bool = _OVERWRITE,
    rows: int = typer.Option(20_000, min=1, help="Texts listed, at most: those to review first."),
) -> None:
    """Write an HTML page for judging and browsing results."""


@runs(store, "store:export")
def export(place: str = _STORE, file: str = _FILE) -> None:
    """Write everything in a store to a file: predictions, texts, labels, embeddings."""


@runs(store, "store:import_")
def import_(file: str = _FILE, place: str = _STORE) -> None:
    """Import a file into a store. Existing entries stay, so importing twice is harmless."""


@runs(store, "store:erase")
def erase(
    place: str = _STORE,
    file: str = argument("FILE", "Texts, as for classify, or - (stdin)."),
    text_column: str = TEXT_COLUMN,
) -> None:
    """Delete all that a store holds of texts, for good: also vectors, answers and judgments."""


@runs(store, "store:runs")
def runs_(place: str = _STORE) -> None:
    """List the runs in a store, the newest last: date, answers, model, labels; and its texts."""


@runs(batch, "store:list_")
def list_(
    store: str = _STORE,
    ended: bool = typer.Option(False, "--all", help="Include batches that have ended."),
    base_url: str | None = _ADDRESS,
) -> None:
    """List the open batches, with their status at the provider."""


@runs(batch, "store:resume")
def resume(
    store: str = _STORE, ids: list[str] | None = _IDS, base_url: str | None = _ADDRESS
) -> None:
    """Wait for open batches (all, or those named), and store their answers."""


@runs(batch, "store:cancel")
def cancel(
    store: str = _STORE,
    ids: list[str] | None = _IDS,
    everything: bool = typer.Option(False, "--all", help="All open batches."),
    base_url: str | None = _ADDRESS,
) -> None:
    """Ask the provider to end batches early; answers so far are billed and can be stored."""


#: The base class of errors in the use of options; typer comes with a click of its own.
_USAGE_ERROR: Any = typer.BadParameter.__base__
#: Command -> the options that a settings file may set.
_SETTINGS = settings_of(app)


class _Stdout(io.FileIO):
    """stdout: its reader may have enough, while files are still to be written; a disk is full."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            # else Python writes the rest at exit, and reports the same again
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(exc, BrokenPipeError):
                return len(data)
            raise InvalidInputError(f"stdout cannot be written: {exc.strerror or exc}") from exc


def main() -> None:
    """Run the command line; errors print one line.

    Exit codes: 2 after an error of input, configuration or store, 1 after any other.
    """
    _open_standard_files()
    # show the progress bar of the texts alone, not those of model downloads
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if isinstance(sys.stdout, io.TextIOWrapper):
        if not sys.stdout.isatty():
            file = io.BufferedWriter(_Stdout(1, "w", closefd=False))
            sys.stdout = io.TextIOWrapper(file, sys.stdout.encoding)
        # a text that the terminal cannot show must not end the command, as it does not on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except TestNUCError as exc:
        mistake = isinstance(exc, InvalidInputError | ConfigurationError | StoreError)
        _fail(str(exc), 2 if mistake else 1)
    except OSError as exc:
        _fail(str(exc), 1)
    except typer.Abort:
        _fail("aborted", 1)
    except KeyboardInterrupt:
        # while the command line is made
        _fail("interrupted", 130)
    except _USAGE_ERROR as exc:
        _fail(_of_usage(exc), exc.exit_code)


def _open_standard_files() -> None:
    """Give a place to standard files that are closed: else a socket or a store would be there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            # it stays open when the object is gone
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _of_usage(error: Any) -> str:
    """Return a mistake in an option, and where it is if not on the command line."""
    # what a check of the value says of itself comes first
    message = str(error.format_message()).replace("Value error, ", "", 1)
    parameter = getattr(error, "param", None)
    if parameter is None or error.ctx is None:
        return message
    source = source_of(error.ctx, parameter.name)
    if source == "ENVIRONMENT":
        return f"{parameter.envvar}: {message}"
    if source == "DEFAULT_MAP":
        return f"{error.ctx.find_root().params.get('config') or FILE}: {message}"
    return message


def _fail(message: str, status: int) -> NoReturn:
    # a command without arguments has shown its help
    if message:
        print(f"testnuc: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
