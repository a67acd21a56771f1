"""Mathematics as MathML, made when the site is built: the browser needs no script and no font for it.

A Markdown extension: `$...$` in a line, `$$...$$` as a paragraph of its own.
"""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, SubElement

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.inlinepatterns import InlineProcessor

# A dollar that opens mathematics touches what follows, one that closes touches what precedes: $5 and $3 are prices.
INLINE = r"(?<![\\\w$])\$(?!\s)([^$\n]+?)(?<!\s)\$(?![\w$])"


class _Inline(InlineProcessor):
    def handleMatch(self, m: Any, data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(m[1])), m.start(0), m.end(0)


class _Display(BlockProcessor):
    def test(self, parent: Element, block: str) -> bool:
        return block.startswith("$$") and block.rstrip().endswith("$$") and len(block.strip()) > 4

    def run(self, parent: Element, blocks: list[str]) -> None:
        block = convert(blocks.pop(0).strip()[2:-2].strip(), display="block")
        SubElement(parent, "div", {"class": "equation"}).text = self.parser.md.htmlStash.store(block)


class MathML(Extension):
    """Registers both forms."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(_Inline(INLINE, md), "math", 185)
        md.parser.blockprocessors.register(_Display(md.parser), "math", 95)


def makeExtension(**settings: Any) -> MathML:
    """What Markdown calls."""
    return MathML(**settings)
