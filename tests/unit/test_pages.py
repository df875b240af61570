"""Every command in the documentation is run by a test, or says why not. Flags that it names exist.

The pages that are made from the code are up to date.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from page_materials import MATERIALS
from pages import (
    COMMENT,
    ELSEWHERE,
    ENDS,
    KINDS,
    MEASURING,
    NOT_RUN,
    ROOT,
    SMALLER,
    Page,
    all_pages,
    prose,
    read_page,
)
from stoker.cli import VERBS

PAGES = all_pages()
INDENTED = re.compile(
    r"^ {4,}(?:\$ )?(?:stoker|pip|python3?|pytest|sbatch|git|tensorboard) .*", re.MULTILINE
)
INLINE = re.compile(r"`(stoker [^`]+)`")
TAIL = re.compile(r"\s[|>;&]")


def by_name(page: Page) -> str:
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_commands_stand_in_blocks_that_are_run(page: Page) -> None:
    text = page.path.read_text(encoding="utf-8")
    assert not INDENTED.findall(prose(text)), "use a ```sh block"
    for block in page.blocks:
        assert block.kind in KINDS, f"line {block.line}: ```{block.kind} is none of {KINDS}"
        if block.title.startswith(ELSEWHERE):
            test = block.title.removeprefix(ELSEWHERE)
            assert (ROOT / test).exists(), f"line {block.line}: no {test}"
        elif block.kind == "sh" and block.title:
            reason = block.title.removeprefix(NOT_RUN)
            assert reason != block.title and len(reason) > 8, f"line {block.line}: give the reason"
    assert not set(page.materials) - MATERIALS.keys()


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_every_verb_and_flag_exists(page: Page) -> None:
    text = COMMENT.sub("", page.path.read_text(encoding="utf-8"))
    commands = [" ".join(inline.split()) for inline in INLINE.findall(text)]
    for block in page.blocks:
        if block.kind == "sh":
            commands += [
                command
                for command in block.commands()
                if command.startswith("stoker ") and not ENDS.search(command)
            ]
    assert not [wrong for command in commands if (wrong := unknown_in(command))]


def unknown_in(command: str) -> str:
    """What a command names that Stoker does not have, or ''."""
    try:
        words = shlex.split(TAIL.split(command)[0], comments=True)[1:]
    except ValueError:  # a quotation mark of the sentence around it
        return ""
    if not words or not re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return ""
    if words[0] not in VERBS:
        return f"{command}: no verb {words[0]}"
    own = words[: words.index("--") if "--" in words else None]
    flags = {word.split("=")[0] for word in own if re.match(r"--[a-z]", word)}
    known = flags_of(*words[:2])
    return "".join(f"{command}: no flag {flag}" for flag in flags if known and flag not in known)


@cache
def flags_of(verb: str, word: str = "") -> frozenset[str]:
    """The flags of a verb, or of the word after it; none where any flag is passed on."""
    names = (f"{verb}_{word}", verb)
    module = next(m for name in names if (m := module_of(name.replace("-", "_"))))
    if verb == "launch" or not hasattr(module, "parser"):
        return frozenset()
    return frozenset(module.parser()._option_string_actions)


def module_of(name: str) -> ModuleType | None:
    full = f"stoker.cli.{name}"
    return import_module(full) if name.isidentifier() and find_spec(full) else None


def test_a_wrong_command_is_found() -> None:
    assert unknown_in("stoker train photos --epohcs 3")
    assert unknown_in("stoker bench data SET --modle x")
    assert unknown_in("stoker tarin photos")
    assert not unknown_in("stoker bench train SET --model a,b | less --what")
    assert not unknown_in("stoker launch slurm --nice=100 -- train x --epohcs 3")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_that_no_reader_types_only_make_a_command_shorter(page: Page) -> None:
    for verb, words in page.flags.items():
        assert verb in MEASURING
        flags = [word for word in words.split() if word.startswith("-")]
        assert all(SMALLER.fullmatch(flag) for flag in flags)


def test_pages_made_from_the_code_are_up_to_date() -> None:
    check = [sys.executable, str(ROOT / "pages" / "make.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, f"python pages/make.py: {done.stdout}{done.stderr}"


def test_a_page_is_read(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        "<!-- begins with: photos, runs/mine -->\n<!-- train adds: --epochs 1 -->\n"
        "```sh\nstoker train photos \\\n  --lr 1 | tee x  # ends with 3\n# alone\n```\n"
        '```sh title="Not run by the tests: needs a GPU"\nstoker train photos\n```\n'
        "```text\nstoker\n```\n"
    )
    page = read_page(file)
    assert page.materials == ["photos", "runs/mine"]
    first, second, third = page.blocks
    (command,) = first.commands()
    assert " ".join(page.with_flags(command).split()[:6]) == "stoker train photos --lr 1 --epochs"
    assert (first.kind, second.is_left_out, third.kind) == ("sh", True, "text")
