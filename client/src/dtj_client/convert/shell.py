"""Reads a shell script without running it: lines, words, and the values of variables. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence

Values = Mapping[str, Sequence[str]]  # an array has several

_REFERENCE = re.compile(
    r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^{}$]*))?\})"
)
HERE = "\0"
_HERE = re.compile(r"(?<!<)<<-?\s*[\"'\\]?([A-Za-z_]\w*)")  # what the line is that ends a here document
_UNQUOTED_WORD = re.compile(r"(?:\$\(\(.*?\)\)|\S)+")  # arithmetic is one word


def lines(text: str) -> Iterator[str]:
    """Yield the lines without comments; a text in quotes, an array and a continued line are one.

    So is a line with its here document, with HERE between them.
    """
    line, quote, depth, place = "", "", 0, 0
    found: list[str] = []
    while place < len(text):
        letter, after = text[place], text[place + 1 : place + 2]
        place += 1
        if letter == "\\" and quote != "'":
            line, place = line + (" " if after == "\n" else letter + after), place + 1
            continue
        if letter == "#" and not quote and (not line or line[-1].isspace()):
            place = end if (end := text.find("\n", place)) >= 0 else len(text)
            continue
        if letter == "\n" and not quote:
            if depth == 0:
                here = _HERE.search(line)
                if here and (last := re.compile(rf"^\t*{here[1]}$", re.MULTILINE).search(text, place)):
                    line, place = f"{line}{HERE}{text[place : last.end()]}", last.end() + 1
                found.append(line.strip())
                line = ""
                continue
            letter = " "
        if letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        elif letter == "(" and (depth or line.endswith(("$", "="))):
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        line += letter
    if quote or depth:  # such as a quote without its end
        yield from (each.strip() for each in re.sub(r"\\\n", " ", text).splitlines())
    else:
        yield from (*found, line.strip())


def words(line: str, values: Values) -> list[str]:
    """The words of a line, with the values of variables that are known; others stay. Raises ValueError."""
    found: list[str] = []
    word: str | None = None
    quoted, is_array, place = False, False, 0
    while place < len(line):
        letter = line[place]
        if letter in "$`" and (whole := _reference(line, place)):
            place, is_array = place + len(whole), "@" in whole
            one_word = (quoted and not is_array) or bool(re.match(r"\w+=", word or ""))
            parts = _parts(whole, values, one_word=one_word, quoted=quoted)
            for part in parts[:1]:
                word = (word or "") + part
            for part in parts[1:]:
                found.append(word or "")
                word = part
            continue
        place += 1
        if letter == '"':
            if quoted and not is_array:  # an empty text is a word, an empty array is none
                word = word or ""
            quoted, is_array = not quoted, False
        elif letter == "'" and not quoted:
            end = line.index("'", place)
            word, place = (word or "") + line[place:end], end + 1
        elif letter == "\\":
            after = line[place : place + 1]
            word = (word or "") + ("\\" if quoted and after not in '$`"\\' else "") + after
            place += 1
        elif letter.isspace() and not quoted:
            found += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + letter
    if quoted:
        raise ValueError("a quote without its end")
    return found if word is None else [*found, word]


def _parts(reference: str, values: Values, *, one_word: bool, quoted: bool) -> Sequence[str]:
    """The words that a reference becomes; itself if the script does not say its value."""
    value = _value(reference, values)
    if value is None:
        return [reference]
    if one_word:
        return [" ".join(value)]
    return value if quoted else [part for each in value for part in _UNQUOTED_WORD.findall(each)]


def _reference(line: str, place: int) -> str:
    """The reference to a variable or the command that begins here; empty if there is none."""
    if line[place] == "`":
        end = line.find("`", place + 1)
        return line[place : end + 1] if end > 0 else ""
    if match := re.compile(r"\$(\w+|\{[^{}]*\}|[@*#?$!-])").match(line, place):
        return match[0]
    if line[place + 1 : place + 2] != "(":
        return ""
    depth = 0
    for end in range(place + 1, len(line)):
        depth += {"(": 1, ")": -1}.get(line[end], 0)
        if depth == 0:
            return line[place : end + 1]
    return ""


def _value(reference: str, values: Values) -> Sequence[str] | None:
    """What a variable stands for; None: the script does not say it."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return None
    known = values.get(match["name"] or match["braced"])
    default = match["default"]
    return known if known or default is None else [default.strip("\"'")]
