"""A report's pages: HTML that stands alone, LaTeX and Markdown that are well formed, the same bytes each time."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from io import BytesIO

import matplotlib.image
import numpy as np
import pytest

from deepnet_fairseq.analysis.report import latex, markdown
from deepnet_fairseq.analysis.report.html_elements import element
from deepnet_fairseq.cli import main

from .support.reported import ENVIRONMENT, grid, printed, run

HOSTILE = """fairseq-train x '</pre></details><script src="http://x.y/z.js">a("&amp;")</script>' _$%&#{}~^\\"""
VOID = {"meta", "img", "br"}


@pytest.mark.parametrize("form", ["md", "tex", "json"])
def test_same_runs_same_bytes(form, recorded, tmp_path, capsys):
    """Printed or written, twice; only the links follow the file."""
    first = printed(capsys, recorded, "--table", "1", "--format", form)
    beside, apart = recorded / f"report.{form}", tmp_path / f"report.{form}"
    for path in (beside, apart):
        main(["report", str(recorded), "--table", "1", "--format", form, "--out", str(path)])
    assert beside.read_text() == first
    if form != "tex":
        (link,) = set(re.findall(r"[\w./-]*/b/train\.log", apart.read_text()))
        assert (apart.parent / link).resolve() == recorded.resolve() / "table1" / "b" / "train.log"
    beside.unlink()


def test_markdown_escapes():
    assert markdown.escape("a|b_c*<d>\n`e`") == r"a\|b\_c\*\<d\> \`e\`"


class Page(HTMLParser):
    """Checks that every element is closed; keeps the elements with their attributes, and the text within each."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """IWSLT-14 at three depths, and a run of Table 1 with a hostile command, name and environment."""
    root = tmp_path_factory.mktemp("pages")
    for layers in (10, 20, 30):
        run(root, "iwslt14", f"deep-{layers}", layers=layers, bleu=29 + layers / 20)
        run(root, "iwslt14", f"post-{layers}", "post_ln", layers=layers, diverged="diverged at update 150")
    odd = ENVIRONMENT | {"hardware": "8 x <b>GPU</b> & 100% of_it", "commit": "{x}"}
    run(root, "table1", "a <i>&'\"|_name%20", bleu=28.0, command=HOSTILE, environment=odd)
    run(root, "table1", "b", "admin", bleu=28.0)
    return root


@pytest.fixture(scope="module")
def pages(recorded, tmp_path_factory):
    """Table -> its HTML."""
    folder = tmp_path_factory.mktemp("written")
    for table in ("1", "iwslt14"):
        main(["report", str(recorded), "--table", table, "--format", "html", "--out", str(folder / table)])
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("table", ["1", "iwslt14"])
def test_page_stands_alone(table, pages):
    page = Page(pages[table])
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert not page.all("link") and not page.all("script") and not page.all("iframe")
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in page.all("img"))
    (css,) = page.texts["style"]
    assert "url(" not in css and "@import" not in css
    assert all(rule in css for rule in ("prefers-color-scheme: dark", "overflow-x: auto", "sticky", "@media print"))
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    inner = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert inner and inner <= set(names)
    assert len(page.all("h1")) == 1 and len(page.all("section")) == len(page.texts["h2"]) >= 7
    assert sum(attributes.get("class") == "scroll" for attributes in page.all("div")) == len(page.all("table"))


def test_page_has_the_numbers_of_the_markdown(recorded, pages, capsys):
    (row,) = [r for r in grid(printed(capsys, recorded, "--table", "iwslt14"), "Overview") if r["method"] == "DeepNorm"]
    page = Page(pages["iwslt14"])
    spans = page.texts["span"]
    at = spans.index("DeepNorm")
    shown = spans[at + 1 : at + 7]  # measured and published at three depths
    assert [f"{mine} {paper}" for mine, paper in zip(shown[::2], shown[1::2], strict=True)] == list(row.values())[1:4]
    assert spans.count("diverged at update 150") == 9  # three runs in three tables


def test_figures_of_the_page(pages):
    """Loss curves; with IWSLT-14 the figure that its runs fill. Each is a PNG of some size."""
    titles = {table: Page(text).texts["h2"] for table, text in pages.items()}
    assert "Training loss" in titles["1"] and "Figure 6" not in titles["1"]
    assert "Training loss" in titles["iwslt14"] and "Figure 6" in titles["iwslt14"]
    for image in Page(pages["iwslt14"]).all("img"):
        picture = matplotlib.image.imread(BytesIO(base64.b64decode(image["src"].split(",")[1])))
        assert picture.shape[0] > 300 and picture.shape[1] > 400 and len(np.unique(picture[..., :3])) > 20


def test_page_escapes_all_text(pages):
    page = Page(pages["1"])
    assert HOSTILE in page.texts["code"]
    assert "a <i>&'\"|_name%20" in page.texts["summary"]
    assert not page.all("i") and {tag for tag, _ in page.elements if tag == "b"} == {"b"}  # the letters of footnotes
    assert any("8 x <b>GPU</b> & 100% of_it" in text for text in page.texts["li"])
    (log,) = [link["href"] for link in page.all("a") if "name%2520" in link["href"]]
    assert re.fullmatch(r"[\w./%-]+", log)


def test_elements_escape_text_and_attributes():
    page = Page(element("p", "<i>&amp;", element("b", "x"), title='"><script>', hidden=False, class_=None))
    assert page.elements == [("p", {"title": '"><script>'}), ("b", {})] and page.texts["p"] == ["<i>&amp;"]


def test_latex_is_well_formed(recorded, capsys):
    text = printed(capsys, recorded, "--table", "1", "--format", "tex")
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert begun == ["table", "tabular"] and ended == ["tabular", "table"]
    assert all(text.count(rule) == 1 for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 11 and {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {4}
    assert r"commit \{x\}, deepnet\_fairseq 0.1" in text
    assert r"8 x \textless{}b\textgreater{}GPU\textless{}/b\textgreater{} \& 100\% of\_it" in text
    assert "27.8)" in body and text.isascii()


@pytest.mark.parametrize(
    "plain, escaped",
    [
        ("\\", r"\textbackslash{}"),
        ("a_b & 5% #1 $x", r"a\_b \& 5\% \#1 \$x"),
        ("{~^}", r"\{\textasciitilde{}\textasciicircum{}\}"),
        ("1 ± 2 − 3\n", r"1 $\pm$ 2 $-$ 3"),
    ],
)
def test_latex_escapes(plain, escaped):
    assert latex.escape(plain) == escaped


def test_page_gives_the_same_bytes(recorded, pages, tmp_path):
    """In another folder at the same depth: the links are relative."""
    out = tmp_path / "x"
    main(["report", str(recorded), "--table", "1", "--format", "html", "--out", str(out)])
    link = re.compile(r'href="[^"]*train\.log"')
    assert link.sub("", out.read_text()) == link.sub("", pages["1"])
