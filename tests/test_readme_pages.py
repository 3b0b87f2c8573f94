"""What finds the README's commands and pastes them into one shell, and what the pages promise to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .readme.page import PAGES, all_blocks, commands, fenced
from .readme.reader import Reader
from .readme.shell import Shell, reader_environment
from .support.helpers import ROOT

COMMAND = re.compile(r"^ *(fairseq-|deepnet |(bash )?scripts/\w+\.sh|[A-Z]+=\S+ \w|pip |pytest)", re.MULTILINE)
PAGE = """# One
```bash
echo first   # said
```
text
```python
print("second")
```
## And two
- item

  <!-- not run: needs eight GPUs -->

  ```bash
  cat <<'END'
    kept
  END
  ```
"""


def test_blocks_of_a_page():
    first, code, last = fenced(PAGE, "page.md")
    assert (first.number, first.heading, first.line, first.text) == (1, "One", 3, "echo first   # said\n")
    assert (code.language, code.not_run) == ("python", None)
    assert (last.number, last.heading, last.not_run) == (2, "And two", "needs eight GPUs")
    assert last.text == "cat <<'END'\n  kept\nEND\n" and last.name == "page.md-2-and-two"
    with pytest.raises(ValueError, match="line 3 is not closed"):
        fenced("text\n```bash\necho\n", "page.md")


@pytest.mark.parametrize(
    "command",
    ["a b  # c", "a \\\n  --b \\\n  --c", "for x in 1 2; do\n  echo $x\ndone", "cat <<'E'\n$x\nE", "echo 'a\n\nb'",
     "a |\n  b", "f() {\n  a\n}", "A=1 b && c"],
)  # fmt: skip
def test_commands_of_a_block(command):
    assert commands(f"# said before\n\nfirst\n{command}\n\nlast\n") == ["first", command, "last"]


@pytest.mark.parametrize("text", ["echo 'a\n", "if a; then\n b\n", "a \\\n", "cat <<E\nx\n", "a | | b\n"])
def test_block_that_ends_within_a_command(text):
    with pytest.raises(ValueError, match="no end"):
        commands(text)


def test_one_shell_for_a_page(tmp_path):
    (tmp_path / "sub folder").mkdir()
    shell = Shell(tmp_path, reader_environment())
    for command in ("cd 'sub folder'", "a='1  2'", "export B='\n'", 'f() { echo "$a|$B|$PWD"; }'):
        assert shell.run(command).status == 0
    assert shell.run("f").output == f"1  2|\n|{tmp_path}/sub folder\n"
    assert shell.run("cat").output == ""  # nothing to read


@pytest.mark.parametrize("command", ["false; true", "false | true", "nothing_of_this_name", "exit 3", "(exit 3); a=1"])
def test_no_failure_is_passed_over(tmp_path, command):
    shell = Shell(tmp_path, reader_environment())
    assert shell.run(command).status in (1, 3, 127)
    assert shell.run("true").status == 0


def test_time_limit_ends_all_that_was_started(tmp_path):
    done = Shell(tmp_path, reader_environment()).run("echo begun; sleep 61.5 & echo $! >child; wait", limit=0.5)
    assert done.status is None and done.output == "begun\n" and done.seconds < 5
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not child.exists() or ") Z" in child.read_text()


def test_a_reader_meets_what_is_wrong(tmp_path):
    """And the blocks before, once each."""
    page = fenced("```bash\necho ran >>log\n```\n```bash\nls --no-such-flag\ntrue\n```\n```bash\ncat log\n```\n", "p")
    reader = Reader(page, tmp_path)
    assert reader.read_to(page[2]) == "" and (tmp_path / "log").read_text() == "ran\n"
    trouble = reader.read_to(page[1])
    assert "$ ls --no-such-flag\nstatus 2" in trouble and "unrecognized option" in trouble and "$ true" not in trouble


def test_pages_and_what_of_them_is_not_run():
    """Nine in ten run; what does not says why; and nothing hides from this in a block of another language."""
    found = all_blocks(ROOT)
    left = [block for block in found if block.not_run is not None]
    assert len(left) <= len(found) / 10
    assert all(len(block.not_run.split()) > 2 for block in left)
    for page in filter(Path.exists, (ROOT / name for name in PAGES)):
        for block in fenced(page.read_text(), page.name):
            assert block.language in ("", "bash", "python", "text", "json", "yaml", "bibtex", "mermaid"), block.name
            assert block.language == "bash" or not COMMAND.search(block.text), block.name


@pytest.mark.parametrize("block", all_blocks(ROOT), ids=lambda block: block.name)
def test_block_is_commands_and_nothing_left_out(block):
    assert commands(block.text)
    assert "..." not in re.sub(r"#.*", "", block.text), "say it whole: what is printed is what is run"
