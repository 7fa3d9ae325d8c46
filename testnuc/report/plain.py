"""An HTML page of the Markdown that `TestNUC.describe` writes; labels in it may be hostile."""

from html import escape

from markdown_it import MarkdownIt

_STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:52rem;"
    "margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;display:block;overflow-x:auto}"
    "th,td{padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884;vertical-align:top;"
    "font-variant-numeric:tabular-nums}code{overflow-wrap:anywhere}"
)
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
    'content="width=device-width"><meta http-equiv="Content-Security-Policy" content="default-src '
    "'none'; style-src 'unsafe-inline'\">"
)
#: What a label cannot mean.
_NOT_IN_LABELS = ("link", "image", "autolink", "emphasis", "entity")


def page_of(markdown: str, title: str) -> str:
    """Return a self-contained page."""
    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable([*_NOT_IN_LABELS])
    body = reader.render(markdown)
    return f"{_HEAD}<title>{escape(title)}</title><style>{_STYLE}</style>\n{body}</html>\n"
