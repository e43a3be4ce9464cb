"""LaTeX to MathML when the book is built: browsers draw it, no script and no font is loaded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml import converter, exceptions

from lmtime.errors import UsageError

if TYPE_CHECKING:
    from sphinx.writers.html5 import HTML5Translator

# Environments that latex2mathml does not know, or numbers: ones that look the same, or none at all.
_SAME = {"align": "align*", "aligned": "align*"} | dict.fromkeys(
    ("equation", "equation*", "gather", "gather*", "gathered"), ""
)
# latex2mathml's own errors have no common class, and broken input raises Python's as well.
_ERRORS = (
    *(e for e in vars(exceptions).values() if isinstance(e, type) and issubclass(e, Exception)),
    *(LookupError, StopIteration, ValueError, ElementTree.ParseError),
)
_KNOWN = re.compile(r"(align|split|cases|array|[pbvBV]?matrix|smallmatrix)\*?")
_N_CHILDREN = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "mroot": 2} | {
    "msubsup": 3,
    "munderover": 3,
}


def to_mathml(latex: str, *, display: bool = False) -> str:
    """The MathML of a formula. What latex2mathml cannot read raises UsageError.

    It also raises where latex2mathml would leave a wrong formula without a word: an unknown
    command or environment, an argument that is missing.
    """
    source = re.sub(r"\\(begin|end)\{([a-z]+\*?)\}", _environment, latex.strip())
    # latex2mathml sets a single letter of \mathrm in italics.
    source = re.sub(r"\\mathrm\{([\w /]+)\}", r"\\text{\1}", source)
    if r"\\" in source and r"\begin" not in source:
        source = rf"\begin{{split}}{source}\end{{split}}"
    try:
        text = converter.convert(source, display="block" if display else "inline")
        root = ElementTree.fromstring(text)
    except _ERRORS as error:
        reason = str(error) or type(error).__name__
        raise UsageError(f"the formula {latex!r} is not LaTeX that we read: {reason}") from error
    for words in root.findall(".//{*}mtext"):
        words.text = re.sub(r"\\([_%&#$])", r"\1", words.text or "")
    _check(root, latex)
    root.set("alttext", " ".join(latex.split()))
    ElementTree.register_namespace("", "http://www.w3.org/1998/Math/MathML")
    return ElementTree.tostring(root, encoding="unicode")


def _environment(match: re.Match) -> str:
    name = _SAME.get(match[2], match[2])
    if name and not _KNOWN.fullmatch(name):
        raise UsageError(f"the environment {name!r} is not one that we read: use align, cases, ...")
    return rf"\{match[1]}{{{name}}}" if name else ""


def _check(root: ElementTree.Element, latex: str) -> None:
    for element in root.iter():
        tag, text = element.tag.rpartition("}")[2], element.text or ""
        if text.startswith("\\") and len(text) > 1:
            raise UsageError(f"the formula {latex!r} uses {text}, which we do not read")
        if text == "&" or len(element) != _N_CHILDREN.get(tag, len(element)):
            raise UsageError(f"the formula {latex!r} has an argument too few or a stray &")


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(f'<span class="math">{_or_warn(self, node)}</span>')
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula, with its number where it has a label."""
    from sphinx.util.math import get_node_equation_number

    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(f"{_or_warn(self, node, display=True)}</div>\n")
    raise nodes.SkipNode


def _or_warn(self: HTML5Translator, node: nodes.Element, *, display: bool = False) -> str:
    """The formula; a warning and its source as it stands where it cannot be read."""
    from sphinx.util import logging

    try:
        return to_mathml(node.astext(), display=display)
    except UsageError as error:
        logging.getLogger(__name__).warning("%s", error, location=node, type="lmtime")
        return f"<code>{self.encode(node.astext())}</code>"
