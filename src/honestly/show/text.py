"""Make untrusted text safe to show: client names, file names and messages may be hostile."""

from __future__ import annotations

import html
import re

from honestly.printable import printable

#: Characters with a meaning in Markdown, except an underscore between letters.
_MARKDOWN = re.compile(r"([\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_]))")
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "±": r"$\pm$", "≤": r"$\le$", "–": "--", "−": "$-$",
}  # fmt: skip


def shorten(text: object, most: int) -> str:
    """Printable text of at most so many letters.

    >>> shorten("a name of many words", 8)
    'a name …'
    """
    whole = printable(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"


def for_markdown(text: object) -> str:
    """Text for a paragraph or a table's cell of Markdown.

    >>> for_markdown("a|b <i> _x_ sign_flip")
    'a\\\\|b &lt;i&gt; \\\\_x\\\\_ sign_flip'
    """
    return _MARKDOWN.sub(r"\\\1", html.escape(printable(text), quote=False))


def for_latex(text: object) -> str:
    r"""Text for LaTeX; letters that pdfLaTeX's fonts may lack are written as question marks.

    >>> for_latex("50% \\input{x}")
    '50\\% \\textbackslash{}input\\{x\\}'
    """
    return "".join(_LATEX.get(c, c if c.isascii() else "?") for c in printable(text))
