"""The pages of the documentation as programs: what a reader would type, in the order of the page.

A page is read for its fenced blocks:

    ```sh                       commands, one a line (a line may end with a backslash); each must
                                end with 0, or with N where the line says `# ends with N`
    ```sh title="Not run by the tests: REASON"
    <!-- Run by tests/... -->   before a block: another test runs these commands
    ```python                   a program, run where the commands are run
    ```toml title="mine.toml"   a file with a title is written, of whichever kind
    ```text                     what is printed, and everything else that is no command

The first lines of a page may say what the reader has by then, and which flags make the test quick:

    <!-- begins with: photos, runs/mine -->
    <!-- train adds: --epochs 1 --model resnet9_w4 -->

`page_materials.py` makes what a page begins with. The flags are added to the commands of the verb:
only to verbs that train or measure, and only flags of SMALLER, which change how long they take.
Everything else is run as it stands on the page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from page_materials import bring

ROOT = Path(__file__).parents[1]
FENCE = re.compile(
    r"^(?:<!-- (Run by [^>]*?) -->\n)?( *)(```+)([^\n`]*)\n(.*?)^\2\3 *$", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TITLE = re.compile(r'title="([^"]*)"')
BEGINS = re.compile(r"<!-- begins with: (.*?) -->")
ADDS = re.compile(r"<!-- ([a-z-]+(?: [a-z]+)?) adds: (.*?) -->", re.DOTALL)
ENDS = re.compile(r"#.*\bends with (\d+)")
TAIL = re.compile(r"\s(?:[|>;&#]|2>)")
"""Where the flags of a command end in its line."""
NOT_RUN, ELSEWHERE = "Not run by the tests: ", "Run by "
MEASURING = ("train", "sweep", "tickets", "doctor", "bench train", "bench data")
"""Verbs that may get flags that a reader does not type."""
SMALLER = re.compile(
    "--(model|image-size|batch-size|micro-batch|epochs|steps|repeats|seconds|keep|rewind|rounds|"
    "replicates|precision|ranks|compute-threads|amp|mixup-alpha|cutmix-prob|no-compile|no-report|"
    "no-rehearse)"
)
"""Those flags: they make the work smaller. None is about prices, places or consent."""
KINDS = ("sh", "python", "toml", "text", "json", "csv", "html")
LONGEST_S = 400.0


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    title: str
    text: str
    line: int

    @property
    def is_left_out(self) -> bool:
        return self.title.startswith((NOT_RUN, ELSEWHERE))

    def commands(self) -> list[str]:
        """The commands of a block of the kind `sh`, without comments that stand alone."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [
            line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")
        ]


@dataclass
class Page:
    path: Path
    blocks: list[Block]
    materials: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def is_run(self) -> bool:
        """Whether a test has anything to run on it."""
        return any(
            block.kind in ("sh", "python") and not block.is_left_out for block in self.blocks
        )

    def with_flags(self, command: str) -> str:
        """The command with the flags that make it quick."""
        for verb, flags in self.flags.items():
            if not re.match(rf"(.*\s)?stoker {verb}\b", command):
                continue
            found = TAIL.search(command)
            end = found.start() if found else len(command)
            command = f"{command[:end]} {flags}{command[end:]}"
        return command


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, or of a part of one."""
    blocks = []
    for match in FENCE.finditer(text):
        test, indent, _, info, body = match.groups()
        found = TITLE.search(info)
        title = test or (found[1] if found else "")
        kind = info.split()[0] if info.split() else ""
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        number = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(kind, title, "".join(lines), number))
    return blocks


def commands_in(text: str) -> list[str]:
    """The commands of a page, or of a part of one, but for those that no test runs."""
    shell = (block for block in blocks_of(text) if block.kind == "sh")
    return [c for block in shell if not block.title.startswith(NOT_RUN) for c in block.commands()]


def read_page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    begins = BEGINS.search(text)
    materials = [name.strip() for name in begins[1].split(",")] if begins else []
    flags = {verb: " ".join(words.split()) for verb, words in ADDS.findall(text)}
    return Page(path, blocks_of(text), materials, flags)


def all_pages() -> list[Page]:
    """Every page of the documentation."""
    return [read_page(path) for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]]


def prose(text: str) -> str:
    """A page without its blocks and comments."""
    return COMMENT.sub("", FENCE.sub("", text))


def run_page(page: Page, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Do what a page says, in a folder of its own, with some more variables of the shell. Returns
    what was printed; raises AssertionError with it where a command ends otherwise than the page
    says."""
    shell = {**environment(folder), **(variables or {})}
    bring(page.materials, folder)
    printed = []
    for block in page.blocks:
        if block.is_left_out:
            continue
        if block.title:
            target = folder / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.kind == "toml":
            tomllib.loads(block.text)
        for command, expected in steps_of(page, block):
            place = f"{page.name}:{block.line}"
            printed.append(run(command, expected, folder, place, shell))
    return "".join(printed)


def steps_of(page: Page, block: Block) -> Iterator[tuple[list[str], int]]:
    """The processes that a block starts, and how each must end."""
    if block.kind == "python" and not block.title:
        yield [sys.executable, "-c", block.text], 0
    if block.kind == "sh":
        for command in block.commands():
            ends = ENDS.search(command)
            yield ["bash", "-ec", page.with_flags(command)], int(ends[1]) if ends else 0


def run(
    command: list[str], expected: int, folder: Path, place: str, shell: Mapping[str, str]
) -> str:
    shown = f"$ {command[-1]}\n"
    print(shown, end="", flush=True)
    done = subprocess.run(
        command,
        cwd=folder,
        env=shell,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LONGEST_S,
    )
    print(done.stdout, flush=True)
    assert done.returncode == expected, (
        f"{place}: ended with {done.returncode}, not {expected}:\n{shown}{done.stdout}"
    )
    return shown + done.stdout


def environment(folder: Path) -> dict[str, str]:
    """Variables of a reader's shell: the installed command, nothing of this machine's user."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "HOME": str(home), "COLUMNS": "100", "MPLBACKEND": "agg"}
    return {**os.environ, **own, "STOKER_METADATA_URL": "http://127.0.0.1:9"}


def main() -> None:
    """python tests/pages.py docs/guides/photos.md FOLDER: run one page in a new folder."""
    page, folder = read_page(Path(sys.argv[1]).resolve()), Path(sys.argv[2]) / "page"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run_page(page, folder)


if __name__ == "__main__":
    main()
