"""Miniatures of the corpora: in the formats of the published archives, the same bytes each time, behind a server."""

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import pytest
import requests

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.miniature import build, iwslt14, m2m102, opus100, serve, wmt
from deepnet_fairseq.data.miniature.folder import MINIATURES
from deepnet_fairseq.data.miniature.text import spoilt, translations
from deepnet_fairseq.data.multilingual.languages import FLORES
from deepnet_fairseq.data.recipes import RECIPES, Options
from deepnet_fairseq.errors import UserError

WMT_17 = ("training-parallel-europarl-v7.tgz", "training-parallel-commoncrawl.tgz", "training-parallel-nc-v12.tgz")
OPUS = "https://object.pouta.csc.fi/OPUS-{}/v1/moses/{}.txt.zip"
TAGS = ("url", "keywords", "talkid", "title", "description")


def texts(archive: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name: tar.extractfile(entry).read().decode() for entry in tar if entry.isfile()}


def lines(text: str) -> list[str]:
    assert text.endswith("\n")
    return text[:-1].split("\n")


def words(line: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", line))


def survives_cleaning(source: str, target: str, ratio: float = 1.5, longest: int = 175) -> bool:
    """What clean-corpus-n.perl keeps, near enough for what is spoilt on purpose."""
    short, long = sorted((words(source), words(target)))
    return short >= 1 and long <= longest and long <= ratio * short


@pytest.fixture(scope="module")
def iwslt():
    return texts(iwslt14.archive("http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"))


def test_iwslt14_has_the_files_that_prepare_iwslt14_reads(iwslt):
    sets = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    names = [f"train.tags.de-en.{lang}" for lang in ("de", "en")]
    names += [f"IWSLT14.{name}.de-en.{lang}.xml" for name in sets for lang in ("de", "en")]
    assert set(iwslt) == {f"de-en/{name}" for name in [*names, "README"]}


def test_iwslt14_training_text_stands_between_tags_and_cleaning_drops_what_is_spoilt(iwslt):
    sides = [lines(iwslt[f"de-en/train.tags.de-en.{lang}"]) for lang in ("de", "en")]
    for side in sides:
        assert {
            tag: sum(line.startswith(f"<{tag}>") and line.endswith(f"</{tag}>") for line in side) for tag in TAGS
        } == (dict.fromkeys(TAGS, 120))
    kept = [
        tuple(re.sub("</?(title|description)>", "", line) for line in pair)
        for pair in zip(*sides, strict=True)
        if not re.match("<(url|keywords|talkid)>", pair[0])
    ]
    clean = [pair for pair in kept if survives_cleaning(*pair)]
    assert len(clean) == 6000
    assert len(kept) == 6060
    assert sum(not pair[0] for pair in kept) == 20
    assert sum(words(pair[0]) > 175 and words(pair[1]) > 175 for pair in kept) == 20
    assert len(set(clean)) == len(clean)
    assert all(any(character in line for line, _ in clean) for character in "\"'’&[]")


def test_iwslt14_test_sets_are_xml_with_aligned_segments(iwslt):
    segments = {"de": [], "en": []}
    for name, text in iwslt.items():
        if name.endswith(".xml"):
            root = ElementTree.fromstring(text.encode())
            assert root.tag == "mteval" and len(root.findall("*/doc")) == 2
            assert all(re.fullmatch(r'<seg id="\d+"> .* </seg>', line) for line in lines(text) if "<seg" in line)
            segments[name.split(".")[-2]].append([seg.text for seg in root.iter("seg")])
            assert "&amp;" in text
    for found in segments.values():
        assert [len(part) for part in found] == [60] * 5
    assert any("’" in seg for part in segments["en"] for seg in part)
    assert all(survives_cleaning(*pair) for parts in zip(*segments.values()) for pair in zip(*parts))
    train = set(lines(iwslt["de-en/train.tags.de-en.en"]))
    assert not any(seg.strip() in train for part in segments["en"] for seg in part)


@pytest.mark.parametrize("name, size", zip(WMT_17, (2030, 1030, 1030)))
def test_wmt_training_archives(name, size):
    members = {
        "training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
        "training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
        "training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en",
    }
    found = texts(wmt.archive(f"http://example.org/{name}"))
    assert set(found) == {f"{members[name]}.{lang}" for lang in ("de", "en")}
    pairs = list(zip(*(lines(found[f"{members[name]}.{lang}"]) for lang in ("de", "en")), strict=True))
    assert len(pairs) == size
    assert sum(survives_cleaning(*pair, longest=250) for pair in pairs) == size - 30
    web = "\u2028" in "".join(found.values())
    assert web == ("crawl" in name)
    if web:  # such a reader would come out of step
        assert len(found["commoncrawl.de-en.de"].splitlines()) > size


def test_wmt_held_out_sets():
    dev, test = (texts(wmt.archive(f"http://example.org/{name}")) for name in ("dev.tgz", "test-full.tgz"))
    kinds = [f"{kind}.{lang}.sgm" for kind in ("src", "ref") for lang in ("de", "en")]
    assert set(test) == {f"test-full/newstest2014-deen-{kind}" for kind in kinds}
    assert set(dev) == {f"dev/newstest2013.{lang}" for lang in ("de", "en")} | {
        f"dev/newstest2013-{kind}" for kind in kinds
    }
    for text in test.values():
        assert len(ElementTree.fromstring(text).findall("doc/p/seg")) == 200
    plain = lines(dev["dev/newstest2013.en"])
    assert [seg.text for seg in ElementTree.fromstring(dev["dev/newstest2013-src.en.sgm"]).iter("seg")] == plain
    assert '<seg id="1">' in test["test-full/newstest2014-deen-ref.de.sgm"]


def test_opus100_pairs_are_of_unequal_size_and_no_english_sentence_is_trained_and_tested_on():
    english = {"train": set(), "dev": set(), "test": set()}
    for pair, size in {"de-en": 3000, "en-fr": 1500, "en-ru": 750, "an-en": 150}.items():
        found = texts(opus100.archive(f"https://example.org/opus-100-corpus-{pair}-v1.0.tar.gz"))
        splits = {"train": size + 1} | ({} if pair == "an-en" else {"dev": 100, "test": 100})
        assert {name: len(lines(text)) for name, text in found.items()} == {
            f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}.{lang}": number
            for split, number in splits.items()
            for lang in pair.split("-")
        }
        assert sum(line == "" for text in found.values() for line in lines(text)) == 1
        for split in splits:
            english[split].update(lines(found[f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{split}.en"]))
        assert any(re.search("[а-я]", text) for text in found.values()) == ("ru" in pair)
    assert not english["train"] & (english["dev"] | english["test"]) and not english["dev"] & english["test"]


def test_m2m102_zips_and_test_sets():
    for corpus, pair, size in (("CCMatrix", "de-en", 2000), ("CCAligned", "en-fr", 500), ("Tatoeba", "de-en", 300)):
        with zipfile.ZipFile(io.BytesIO(m2m102.archive(OPUS.format(corpus, pair)))) as archive:
            sides = [f"{corpus}.{pair}.{lang}" for lang in pair.split("-")]
            assert set(archive.namelist()) == {*sides, "README", "LICENSE"}
            assert [len(lines(archive.read(side).decode())) for side in sides] == [size + 6, size + 6]  # 6 are unfit
    flores = texts(m2m102.archive("https://example.org/flores101_dataset.tar.gz"))
    assert {len(lines(text)) for name, text in flores.items() if name.endswith(("dev", "devtest"))} == {100}
    names = {f"flores101_dataset/{split}/{code}.{split}" for split in ("dev", "devtest") for code in FLORES.values()}
    assert {"flores101_dataset/dev/eng.dev", "flores101_dataset/devtest/zho_simpl.devtest"} <= names
    assert set(flores) == names | {"flores101_dataset/README"}
    zero = texts(m2m102.archive("https://example.org/opus-100-corpus-zeroshot-v1.0.tar.gz"))
    assert len(zero) == 2 * 15
    assert len(lines(zero["opus-100-corpus/v1.0/zero-shot/de-fr/opus.de-fr-test.fr"])) == 100


def test_languages_say_the_same_in_alphabets_of_their_own():
    rows = list(islice(translations("test", ("de", "fr", "ru"), frames=("{}",)), 300))
    for other in (1, 2):
        letters = {}
        for row in rows:
            for here, there in zip(row[0], row[other], strict=True):
                assert letters.setdefault(here, there) == there
        assert len(set(letters.values())) == len(letters)
        assert letters["a"] != "a" or letters["e"] != "e"
    other = islice(translations("other", ("de",), frames=("{}",)), 300)
    known = {word for row in rows for word in row[0].split()}
    spoken = [word for row in other for word in row[0].split()]
    assert sum(word in known for word in spoken) > 0.8 * len(spoken)  # the rest are names and compounds


def test_spoilt_pairs_are_dropped_by_cleaning_and_others_are_not():
    pairs = translations("test", ("de", "en"))
    bad = [pair for _ in range(20) for pair in spoilt(pairs)]
    assert not any(survives_cleaning(*pair, longest=250) for pair in bad)
    assert all(survives_cleaning(*pair) for pair in islice(pairs, 2000))


CONTENT = bytes(range(256)) * 40


@pytest.fixture
def url(tmp_path):
    (tmp_path / "host" / "a b").mkdir(parents=True)
    (tmp_path / "host" / "a b" / "file.tgz").write_bytes(CONTENT)
    with serve(tmp_path) as url:
        yield f"{url}/host/a%20b/file.tgz"


def test_server_gives_files_and_nothing_else(url):
    answer = requests.get(url)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert answer.headers["Content-Length"] == str(len(CONTENT))
    head = requests.head(url)
    assert (head.status_code, head.content, head.headers["ETag"]) == (200, b"", answer.headers["ETag"])
    for other in ("missing", "", "../../../../../../etc/passwd", "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd"):
        assert requests.get(f"{url.rpartition('/')[0]}/{other}").status_code == 404


def test_server_resumes(url):
    size = len(CONTENT)
    for asked, part in (("5-", CONTENT[5:]), ("0-0", CONTENT[:1]), ("-7", CONTENT[-7:]), ("9-99999", CONTENT[9:])):
        answer = requests.get(url, headers={"Range": f"bytes={asked}"})
        first = size - len(part) if asked != "0-0" else 0
        assert (answer.status_code, answer.content) == (206, part)
        assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(part) - 1}/{size}"
    beyond = requests.get(url, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    tag = requests.head(url).headers["ETag"]
    assert requests.get(url, headers={"Range": "bytes=5-", "If-Range": tag}).content == CONTENT[5:]
    changed = requests.get(url, headers={"Range": "bytes=5-", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, CONTENT)
    assert requests.get(url, headers={"Range": "lines=5-"}).status_code == 200


def test_server_ends_with_its_block(tmp_path):
    with serve(tmp_path) as url, requests.Session() as session:
        assert session.get(url).status_code == 404  # and keeps the connection
    with pytest.raises(requests.ConnectionError):
        requests.get(url)


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    """name -> the folder of its miniature, built once."""
    return cache(lambda name: _built(name, tmp_path_factory.mktemp(name)))


def _built(name, folder):
    build(name, folder)
    return folder


def test_every_recipe_that_downloads_has_a_miniature_and_each_file_is_served(mirror, tmp_path):
    options = Options(dest=tmp_path, downloads=tmp_path, miniature=True)
    assert {name for name, recipe in RECIPES.items() if recipe.files(options)} == set(MINIATURES)
    for name in MINIATURES:
        with serve(mirror(name)) as url, requests.Session() as session:
            sums = dict(reversed(line.split("  ")) for line in lines(session.get(f"{url}/SHA256SUMS").text))
            addresses = [address for file in RECIPES[name].files(options) for address in file.urls]
            assert set(sums) == {address.partition("://")[2] for address in addresses}
            for place, known in sums.items():
                assert hashlib.sha256(session.get(f"{url}/{place}").content).hexdigest() == known


def prepare(name, folder, dest):
    with serve(folder) as url:
        main(["prepare", name, str(dest), "--miniature", "--mirror", url, "--workers", "1"])
    return json.loads((dest / "recipe.json").read_text())


def test_unknown_miniature():
    with pytest.raises(UserError, match="no such miniature; there are iwslt14_de_en"):
        build("wmt99", Path("nowhere"))


COUNTS = {  # of the recipe's steps, as known from how the miniature is made
    "iwslt14_de_en": {"training text": 6060, "clean": 6000, "train": 6000 - 260, "valid": 6000 // 23, "test": 300},
    "wmt17_en_de": {"training text": 4090, "test": 200},
    "wmt14_en_de": {"training text": 4090, "valid": 200, "test": 200},
}


@pytest.mark.parametrize("name", COUNTS)
def test_bilingual_recipe_makes_a_whole_corpus_of_it(name, mirror, tmp_path, capsys):
    summary = prepare(name, mirror(name), tmp_path)
    printed = capsys.readouterr().out
    found = dict(re.findall(r"\| ([\w ]+): ([\d,]+) sentence pairs", printed))
    assert {what: int(found[what].replace(",", "")) for what in COUNTS[name]} == COUNTS[name]
    assert summary["miniature"] and summary["recipe"] == name
    assert 4000 * 0.95 < summary["counts"]["train"] <= 6000
    langs = ("de", "en")
    for source, target in (langs, langs[::-1]):
        reference = tmp_path / "reference" / f"test.{source}-{target}.{target}"
        assert len(lines(reference.read_text())) == COUNTS[name]["test"]


PAIRS = {
    "opus100": {"an-en": 150, "de-en": 3000, "en-fr": 1500, "en-ru": 750},
    "m2m102": {"de-en": 3300, "de-fr": 3300, "en-fr": 1650},
}


@pytest.mark.parametrize("name, subset", [("opus100", "test"), ("m2m102", "flores")])
def test_multilingual_recipe_makes_a_whole_corpus_of_it(name, subset, mirror, tmp_path):
    summary = prepare(name, mirror(name), tmp_path)
    assert summary["miniature"] and summary["recipe"] == name
    assert {pair: counts["train"] for pair, counts in summary["counts"]["pairs"].items()} == PAIRS[name]
    assert len(lines((tmp_path / "reference" / f"{subset}.en-fr.fr").read_text())) == 100


def test_pairs_that_are_named_are_served(tmp_path):
    build("m2m102", tmp_path, ("ja-en", "an-en"))  # Flores-101 does not have an
    assert sorted(path.name for path in tmp_path.rglob("*.zip")) == ["an-en.txt.zip"] * 3 + ["en-ja.txt.zip"] * 3


COMMAND = [str(Path(sys.executable).parent / "deepnet"), "serve-miniature", "iwslt14_de_en"]


@pytest.fixture
def server(tmp_path):
    """Starts the command; whatever happens, it is gone afterwards. Gives the process and the URL it prints."""
    started = []

    def start(*flags, seed):
        process = subprocess.Popen(
            [*COMMAND, *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_command_serves_the_same_bytes_each_time_and_leaves_nothing_behind(server, tmp_path):
    process, url = server("--until-stdin-closes", seed="1")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    first = requests.get(f"{url}/SHA256SUMS").text
    assert len(list(tmp_path.iterdir())) == 1
    process.stdin.close()
    assert process.wait(10) == 0
    process, url = server(seed="2")
    process.stdin.close()  # does not matter without the flag
    assert requests.get(f"{url}/SHA256SUMS").text == first != ""
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not list(tmp_path.iterdir())


SCRIPT = """
coproc {} --until-stdin-closes
read -r url <&"${{COPROC[0]}}"
echo "$url"
sleep 100
echo done
"""


def test_no_server_survives_a_killed_script(tmp_path):
    (tmp_path / "script.sh").write_text(SCRIPT.format(" ".join(COMMAND)))
    command = ["bash", str(tmp_path / "script.sh")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as script:
        try:
            url = script.stdout.readline().strip()
            assert requests.get(f"{url}/SHA256SUMS").status_code == 200
            time.sleep(0.5)
            assert requests.get(f"{url}/SHA256SUMS").status_code == 200
            script.kill()  # bash alone: its sleep goes on, as a training would
            script.wait()
            for _ in range(100):
                with suppress(requests.ReadTimeout):
                    requests.get(f"{url}/SHA256SUMS", timeout=5)
                time.sleep(0.1)
            pytest.fail("the server is still there")
        except requests.ConnectionError:
            assert script.poll() is not None
        finally:
            os.killpg(script.pid, signal.SIGKILL)
