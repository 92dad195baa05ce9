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

_FIRST_PRIVATE = 0xF0000
"""The first character of a plane for private use, which no text of a person has."""

_LAST_OF_PLANE = 0xFFFF
"""The last character of the basic plane."""

_SPACE = re.compile(r"\s+")

_PART = re.compile(r"[^\W_]+")
"""A part of a word as the index of words has it: letters and digits."""


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
        beginnings = list[tuple[Word, str]]()
        for word in self.words:
            if word.is_prefix:
                # The index has its parts; the last of them is the beginning.
                parts = _PART.findall(_fold(word.text))
                beginnings.append((word, parts[-1]))
        return beginnings

    def format_fts5(self, owner: str | None, without: Collection[Word]) -> str:
        """Return the expression of SQLite; empty if it has no condition.

        Args:
            owner: the key of the owner of the texts (`build_owner_key`); None for all texts.
            without: words that the expression leaves out.
        """
        conditions = list[str]()
        if owner is not None:
            conditions.append(f'{{owner}} : "{owner}"')

        words = [
            f"{_quote(word.text)} *" if word.is_prefix else _quote(word.text)
            for word in self.words
            if word not in without
        ]
        if words:
            conditions.append(f"{{text}} : ({' AND '.join(words)})")
        return " AND ".join(conditions)

    def format_tsquery(self) -> tuple[str, str]:
        """Return the texts for `plainto_tsquery` and for `to_tsquery` of PostgreSQL."""
        whole_words = list[str]()
        beginnings = list[str]()
        for word in self.words:
            if word.is_prefix:
                quoted = word.text.replace("\\", "\\\\").replace("'", "''")
                beginnings.append(f"'{quoted}':*")
            else:
                whole_words.append(word.text)
        return " ".join(whole_words), " & ".join(beginnings)

    def cut(self, text: str) -> Snippet:
        """Return the part of a found text around the first word in it."""
        places, any_word, _ = _build_patterns(self)
        folded = _fold(text)
        hits = (place.search(folded) for place in places)
        first_hit = min((hit.start() for hit in hits if hit), default=0)
        begin = max(0, first_hit - _BEFORE_HIT)
        if begin:
            # A word is not cut where the text allows it.
            space = text.find(" ", begin, begin + _BEFORE_HIT // 2)
            if space >= 0:
                begin = space + 1

        # White space becomes one space, so that a part of twice the length may be needed.
        end = begin + 2 * SNIPPET_LENGTH
        line = escape_controls(_SPACE.sub(" ", text[begin:end]).strip())

        has_rest = end < len(text) or len(line) > SNIPPET_LENGTH
        line = line[:SNIPPET_LENGTH]
        if begin:
            line = f"…{line}"
        if has_rest:
            line = f"{line}…"
        return Snippet(line, [hit.span() for hit in any_word.finditer(_fold(line))])


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

        if len(word) < MINIMUM_PART and is_prefix:
            raise errors.ValidationFailed(
                f"search: a beginning with * must be at least {MINIMUM_PART} characters",
                hint="leave out the *",
            )
        if len(word) < MINIMUM_PART and tokenizer == "trigram":
            raise errors.ValidationFailed(
                f"search: each word must be at least {MINIMUM_PART} characters",
                hint="the tokenizer is trigram",
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
    return "".join(chr(_FIRST_PRIVATE + number) for number in numbers)


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

        # The last part of a beginning may continue.
        ends_open = word.is_prefix and longest == parts[-1]
        places.append(re.compile(place if ends_open else place + end))

        whole = r"[\W_]+".join([first, *parts[1:]])
        texts.append(whole if word.is_prefix else whole + end)

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
