"""Sphinx: the pages of this folder as a site. The pages are plain Markdown that any forge shows; what only a site needs is added here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sphinx.application import Sphinx

project = "corekit"
author = "the corekit authors"
copyright = "the corekit authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
root_doc = "index"

nitpicky = True
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings: list[str] = []

html_theme = "furo"
html_title = "corekit"
html_show_sourcelink = False
html_copy_source = False

CONTENTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "index": {
        "Use it": ("cli", "configuration", "http", "observability", "python", "cpu", "kv-memory", "cookbook", "benchmarks"),
        "Extend it": ("writing-plugins", "testing-plugins"),
        "Slots": (
            "slots/tokenizer",
            "slots/scheduler_policy",
            "slots/block_allocator",
            "slots/attention_backend",
            "slots/sampler",
            "slots/frontend",
            "slots/model",
            "slots/executor",
            "slots/logits_processor",
            "slots/observer",
            "slots/http_route",
            "slots/tool_format",
        ),
        "Know it": ("architecture", "adr/README", "contributing", "changelog"),
    },
    "adr/README": {"": ("0*",)},
}
"""Page -> caption -> the pages beneath it. Sphinx warns of a page that is in none, and warnings are errors."""


def _add_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    for caption, pages in CONTENTS.get(docname, {}).items():
        options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
        source[0] += "\n\n```{toctree}\n" + "\n".join((*options, "", *pages)) + "\n```\n"


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_contents)
