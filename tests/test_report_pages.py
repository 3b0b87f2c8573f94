"""A report's pages: HTML that stands alone, the same bytes each time."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest

from deepnet_fairseq.analysis.report import formats
from deepnet_fairseq.cli import main

from .support.reported import ENVIRONMENT, printed, run

HOSTILE = """fairseq-train x '</pre></details><script src="http://x.y/z.js">a("&amp;")</script>' _$%&#{}~^\\"""
VOID = {"meta", "img", "br"}


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
        if self.open and data.strip():
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
    run(root, "table1", "a <i>&'\"|_name%20", bleu=28.0, command=HOSTILE, environment=odd, smoke=True)
    run(root, "table1", "b", "admin", bleu=28.0)
    return root


@pytest.fixture(scope="module")
def pages(recorded, tmp_path_factory):
    """Table -> its HTML."""
    folder = tmp_path_factory.mktemp("written")
    for table in ("1", "iwslt14"):
        main(["report", str(recorded), "--table", table, "--format", "html", "--out", str(folder / table)])
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_same_runs_same_bytes(recorded, pages, tmp_path, capsys):
    """Printed or written, alone or with other formats; only the links follow the file."""
    forms = ("md", "html", "json")
    main(["report", str(recorded), "--table", "1", "--format", "md,html,json", "--out", str(tmp_path / "all")])
    assert capsys.readouterr().out.splitlines() == [f"wrote {tmp_path}/all.{form}" for form in forms]
    for form in forms:
        text = (tmp_path / f"all.{form}").read_text()
        links = re.findall(r"[\w./-]*/b/train\.log", text)
        assert {(tmp_path / link).resolve() for link in links} == {recorded.resolve() / "table1" / "b" / "train.log"}
        start = links[0].removesuffix("table1/b/train.log")
        assert text.replace(start, "") == printed(capsys, recorded, "--table", "1", "--format", form)
    assert (tmp_path / "all.html").read_text() == pages["1"]  # in another folder at the same depth


@pytest.mark.parametrize("table", ["1", "iwslt14"])
def test_page_stands_alone(table, pages):
    page = Page(pages[table])
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert not page.all("link") and not page.all("script") and not page.all("iframe")
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in page.all("img"))
    assert "url(" not in page.texts["style"][0] and "@import" not in page.texts["style"][0]
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    inner = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert inner and inner <= set(names)
    assert len(page.all("h1")) == 1 and len(page.all("section")) == len(page.texts["h2"]) >= 7
    assert sum(attributes.get("class") == "scroll" for attributes in page.all("div")) == len(page.all("table"))


def test_figures_of_the_page(pages):
    """Loss curves; with IWSLT-14 the figure that its runs fill. Each is a PNG, as in test_figures."""
    titles = {table: Page(text).texts["h2"] for table, text in pages.items()}
    assert "Training loss" in titles["1"] and "Figure 6" not in titles["1"]
    spans = Page(pages["iwslt14"]).texts["span"]
    assert spans.count("diverged at update 150") == 9 and "(29.8)" in spans  # three runs in three tables; the paper's
    assert "Training loss" in titles["iwslt14"] and "Figure 6" in titles["iwslt14"]
    images = [base64.b64decode(image["src"].split(",")[1]) for image in Page(pages["iwslt14"]).all("img")]
    assert len(images) == 2 and all(image.startswith(b"\x89PNG") and len(image) > 10_000 for image in images)


def test_all_text_is_escaped(pages):
    page = Page(pages["1"])
    assert HOSTILE in page.texts["code"]
    assert "a <i>&'\"|_name%20" in page.texts["summary"]
    assert not page.all("i") and {tag for tag, _ in page.elements if tag == "b"} == {"b"}  # the letters of footnotes
    assert any("8 x <b>GPU</b> & 100% of_it" in text for text in page.texts["li"])
    (log,) = [link["href"] for link in page.all("a") if "name%2520" in link["href"]]
    assert re.fullmatch(r"[\w./%-]+", log)
    assert any(text.startswith("Miniature on generated data") for text in page.texts["p"])
    assert formats.escape("a|b_c*<d>\n`e`") == r"a\|b\_c\*\<d\> \`e\`"
