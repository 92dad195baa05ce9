"""The words of a search, the owner of texts, and the part of a text that was found.

A text is found if it contains all words. The words are quoted, so no input has a syntax error
(docs/search.md).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from agentctl import errors
from agentctl.records.text import check_text, escape_controls

Tokenizer = Literal["words", "trigram"]

MAXIMUM_WORDS = 16
"""Words of a search."""

MAXIMUM_SEARCH_LENGTH = 500
"""Characters of a search."""

MINIMUM_PART = 3
"""Characters before `*`, and of a word for the tokenizer `trigram`, at least.

For a shorter beginning, the index would have to read a large part of all texts.
"""

MAXIMUM_TEXT = 32_768
"""Characters of a message and of an answer that are found."""

SNIPPET_LENGTH = 160
"""Characters of the part of a text that is shown."""

_BEFORE_HIT = 48
"""Characters of that part before the first word that was found."""

_PRIVATE = 0xF0000
_LAST_OF_PLANE = 0xFFFF
_SPACE = re.compile(r"\s+")
_PART = re.compile(r"[^\W_]+")


class Word(NamedTuple):
    """A word to find; with `is_prefix` also as the beginning of a word."""

    text: str
    is_prefix: bool


class Snippet(NamedTuple):
    """One line of a text, and the [start, end) of each found word in it, in characters."""

    text: str
    highlights: list[tuple[int, int]]


class Match(NamedTuple):
    """A text that was found."""

    place: int
    session_id: str

    run_id: str | None
    """The run; None for the name of a session."""

    text: str


@dataclass(frozen=True, slots=True)
class SearchWords:
    """The words of a search for the index of one tokenizer."""

    words: tuple[Word, ...]
    tokenizer: Tokenizer

    def list_beginnings(self) -> list[tuple[Word, str]]:
        """Return the words that are beginnings, each with the beginning of a word in the index."""
        return [
            (word, _PART.findall(_fold(word.text))[-1]) for word in self.words if word.is_prefix
        ]

    def format_fts5(self, owner: str | None, without: Collection[Word]) -> str:
        """Return the expression of SQLite; empty if it has no condition.

        Args:
            owner: the owner of the texts; None: of all.
            without: words that the expression leaves out.
        """
        words = " AND ".join(
            _quote(word.text) + (" *" if word.is_prefix else "")
            for word in self.words
            if word not in without
        )
        parts = [] if owner is None else [f'{{owner}} : "{owner}"']
        return " AND ".join([*parts, f"{{text}} : ({words})"] if words else parts)

    def format_tsquery(self) -> tuple[str, str]:
        """Return the texts for `plainto_tsquery` and for `to_tsquery` of PostgreSQL."""
        prefixes = [
            "'" + word.text.replace("\\", "\\\\").replace("'", "''") + "':*"
            for word in self.words
            if word.is_prefix
        ]
        plain = " ".join(word.text for word in self.words if not word.is_prefix)
        return plain, " & ".join(prefixes)

    def cut(self, text: str) -> Snippet:
        """Return the part of a found text around the first word in it."""
        places, words, _ = _build_patterns(self)
        folded = _fold(text)
        hits = (place.search(folded) for place in places)
        first = min((hit.start() for hit in hits if hit), default=0)
        first = max(0, first - _BEFORE_HIT)

        # A word is not cut where the text allows it; white space becomes one space.
        if first:
            space = text.find(" ", first, first + _BEFORE_HIT // 2)
            first = space + 1 if space >= 0 else first

        line = _SPACE.sub(" ", text[first : first + 2 * SNIPPET_LENGTH]).strip()
        line = escape_controls(line)

        has_rest = first + 2 * SNIPPET_LENGTH < len(text) or len(line) > SNIPPET_LENGTH
        before = "…" if first else ""
        after = "…" if has_rest else ""
        line = before + line[:SNIPPET_LENGTH] + after

        return Snippet(line, [hit.span() for hit in words.finditer(_fold(line))])


def parse_search(text: str, tokenizer: Tokenizer | None) -> SearchWords:
    """Return the words of a search.

    Args:
        text: words, separated by white space; `refu*` finds words that begin with `refu`.
        tokenizer: the tokenizer of the index; None if there is none.

    Raises:
        BadRequest: there is no index.
        ValidationFailed: there is no word, there are too many, or one is too short or too long.
    """
    if tokenizer is None:
        raise errors.BadRequest(
            "Search is not enabled: it needs enabled = true in [search]",
            hint="run `agentctl db index` once when search is enabled",
        )

    check_text("search", text)
    if len(text) > MAXIMUM_SEARCH_LENGTH:
        raise errors.ValidationFailed(f"search must be at most {MAXIMUM_SEARCH_LENGTH} characters")

    words = []
    for part in text.split():
        word = part.rstrip("*")
        is_prefix = tokenizer == "words" and word != part

        if not any(letter.isalnum() for letter in word):
            continue

        if len(word) < MINIMUM_PART and (is_prefix or tokenizer == "trigram"):
            what = "a beginning with * must" if is_prefix else "each word must"
            raise errors.ValidationFailed(
                f"search: {what} be at least {MINIMUM_PART} characters",
                hint="leave out the *" if is_prefix else "the tokenizer is trigram",
            )

        words.append(Word(word, is_prefix))

    if not words:
        raise errors.ValidationFailed("search must contain a word")
    if len(words) > MAXIMUM_WORDS:
        raise errors.ValidationFailed(f"search must be at most {MAXIMUM_WORDS} words")

    return SearchWords(tuple(dict.fromkeys(words)), tokenizer)


def _quote(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def has_beginnings(*values: object) -> bool:
    """Return True if a text has words with all of some beginnings. A function for SQLite.

    The first value is the text, the second value has the beginnings, separated by spaces.
    """
    text, beginnings = map(str, values)
    words = tuple(Word(beginning, is_prefix=True) for beginning in beginnings.split())
    folded = _fold(text)
    *_, patterns = _build_patterns(SearchWords(words, "words"))
    return all(pattern.search(folded) for pattern in patterns)


def build_owner_key(user_id: str | None) -> str:
    """Return three characters that identify a user in the index.

    Private characters are one word for the tokenizer of words, and three characters are one
    sequence for the tokenizer of trigrams. Different users may share a key, so a search also
    compares the user of the session.
    """
    digest = hashlib.sha256(b"" if user_id is None else b"user " + user_id.encode()).digest()
    numbers = (int.from_bytes(digest[at : at + 2]) % 0xFFFE for at in (0, 2, 4))
    return "".join(chr(_PRIVATE + number) for number in numbers)


@lru_cache(64)
def _build_patterns(
    search: SearchWords,
) -> tuple[list[re.Pattern[str]], re.Pattern[str], list[re.Pattern[str]]]:
    """Return patterns of folded texts: of the place of each word, of any word, and of each word.

    The place of a word such as `e-mail` is the place of its longest part. So the time of a look-up
    in a long text does not depend on the search.
    """
    places = list[re.Pattern[str]]()
    texts = list[str]()
    for word in sorted(search.words, key=lambda word: -len(word.text)):
        folded = _fold(word.text)
        if search.tokenizer == "trigram":
            texts.append(re.escape(folded))
            places.append(re.compile(texts[-1]))
            continue

        # The parts as the index has them: letters and digits.
        parts = _PART.findall(folded)
        longest = max(parts, key=len)

        # The letters come before the check of the begin: a text is searched for them at once.
        place = rf"{longest}(?<![^\W_]{longest})"
        first = rf"{parts[0]}(?<![^\W_]{parts[0]})"
        end = r"(?![^\W_])"

        is_open = word.is_prefix and longest == parts[-1]
        places.append(re.compile(place if is_open else place + end))
        texts.append(r"[\W_]+".join([first, *parts[1:]]) + ("" if word.is_prefix else end))

    return places, re.compile("|".join(texts)), [re.compile(text) for text in texts]


def _fold(text: str) -> str:
    """Return a text without case and accents, of the same length."""
    return text.lower() if text.isascii() else text.translate(_FOLDED)


class _FoldedLetters(dict[int, str]):
    """The letters of the basic plane without case and accents; each is added at its first use."""

    def __missing__(self, code: int) -> str:
        folded = unicodedata.normalize("NFD", chr(code))[0].lower()[0]
        if code <= _LAST_OF_PLANE:
            self[code] = folded
        return folded


_FOLDED = _FoldedLetters()
