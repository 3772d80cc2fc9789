"""Which licences a text names: a table of SPDX ids, each with the phrases that give it away.

A text is compared as plain words (`words`), so line ends and comment signs in the middle of a phrase do not
matter. It reads no files and gives no legal advice: it says what is named, not what applies.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT = string.ascii_letters + string.digits + ".+"
_BLANKED = bytes(ord(chr(byte).lower()) if chr(byte) in _KEPT else ord(" ") for byte in range(256))

# The end of a sentence goes, but not where a chapter number may follow the name of a licence.
_SENTENCE_ENDS = ((b"gpl. ", b"gpl ; "), (b"license. ", b"license ; "), (b". ", b" "))

# One way of saying for many, so that the patterns stay short. The order matters: longer names first.
_SAID_OTHERWISE = (
    (b" dnl ", b" "),
    (b" rem ", b" "),
    (b"licence", b"license"),
    (b"lesser general public license", b"lgpl"),
    (b"library general public license", b"lgpl"),
    (b"affero general public license", b"agpl"),
    (b"general public license", b"gpl"),
    (b" gnu ", b" "),
    (b" as published by the free software foundation ", b" "),
    (b" either ", b" "),
    (b" at your option ", b" "),
    (b" of the license ", b" "),
)

# Passages of licence texts that name a licence and grant nothing under it.
_NOT_A_GRANT = re.compile(
    rb"how to apply these terms to your new .{0,3000}"
    rb"|secondary license means .{0,200}"
    rb"|refer to the ordinary gpl version 2"
    rb"|refers to version 3 of the a?gpl"
    rb"|(?:incorporates the terms and conditions of|remain governed by) version 3 of the a?gpl"
    rb"|licensed under version 3 of the a?gpl into a single combined work"
)

# One of these is in every text that a row can match; without one a file is done.
_HINTS = (b"licen", b"permission", b"redistribution", b"gpl", b"domain", b"cc0", b"psf")

_ID = rb"[A-Za-z0-9][A-Za-z0-9.+:-]*"
_TAG = re.compile(
    rb"SPDX-License-Identifier:([ \t(]*" + _ID + rb"[ \t)]*(?:\b(?:AND|OR|WITH)[ \t(]+" + _ID + rb"[ \t)]*)*)"
)
_OLD_GNU_ID = re.compile(r"^([AL]?GPL-[0-9.]+[0-9])(\+?)$")
_NOT_AN_ID = re.compile(r"\bWITH\s+\S+|\b(?:AND|OR)\b|[()]")


class Row(NamedTuple):
    """`needle` is in every match of `pattern`: looking for it first is many times cheaper."""

    spdx: str
    needle: bytes
    pattern: re.Pattern[bytes]


def _row(spdx: str, needle: str, *phrases: str) -> Row:
    return Row(spdx, needle.encode(), re.compile(rf"\b(?:{'|'.join(phrases)})".encode()))


def _gnu(stem: str, number: str) -> tuple[Row, Row]:
    """Return two rows: this version only, and this version or later (`version 2 or later of the GPL`, `GPLv2+`)."""
    name, version = stem.lower(), re.escape(number.removesuffix(".0"))
    dot_zero = r"(?:\.0)?" if number.endswith(".0") else ""
    later = r"(?:\+| or (?:any )?(?:later|newer|above|greater))"
    after = rf"{name}(?: license)? ?(?:version |v ?)?{version}{dot_zero}(?![.0-9])"
    before, of_name = rf"version {version}{dot_zero}", rf" of the {name}\b"
    only = _row(f"{stem}-{number}-only", name, rf"{after}(?!{later})", rf"{before}{of_name}(?!{later})")
    anew = rf"{before}{later}(?: version)?{of_name}"
    return only, _row(f"{stem}-{number}-or-later", name, after + later, before + of_name + later, anew)


_BSD = "redistribution and use in source and binary forms with or without modification are permitted"
_NO_ENDORSEMENT = ".{0,1500}?(?:neither the name|may not be used to endorse)"
_ADVERTISING = ".{0,1500}?all advertising materials mentioning"
_MIT = "permission is hereby granted free of charge to any person obtaining a copy of this software"
_ANY_PURPOSE = (
    "permission to use copy modify and(?: or)? distribute this software for any purpose "
    "with or without fee is hereby granted"
)
_DOCUMENTATION = "permission to use copy modify and distribute this software and its documentation for any purpose"

TABLE = (
    _row("0BSD", "0bsd", "0bsd license"),
    _row("0BSD", "hereby granted", f"{_ANY_PURPOSE} the software is provided"),
    *_gnu("AGPL", "3.0"),
    _row("Apache-1.1", "apache", "apache(?: software)? license version 1.1"),
    _row(
        "Apache-2.0",
        "apache",
        r"apache(?: software)? license,? ?(?:version |v ?)?2(?:\.0)?(?![.0-9])",
        r"apache 2(?:\.0)? license",
        r"apache.org licenses license 2\.0",
        r"license apache 2\.0",
    ),
    _row("Artistic-2.0", "artistic", r"artistic license (?:version |v ?)?2"),
    _row("BSD-2-Clause", "bsd", "bsd 2 clause", "2 clause bsd", "simplified bsd license"),
    _row("BSD-2-Clause", "redistribution and use", f"{_BSD}(?!{_NO_ENDORSEMENT}|{_ADVERTISING})"),
    _row("BSD-3-Clause", "bsd", "bsd 3 clause", "3 clause bsd", "(?:new|modified|revised) bsd license"),
    _row("BSD-3-Clause", "redistribution and use", f"{_BSD}(?!{_ADVERTISING}){_NO_ENDORSEMENT}"),
    _row("BSD-4-Clause", "redistribution and use", _BSD + _ADVERTISING),
    _row("BSL-1.0", "boost software license", r"boost software license (?:version |v ?)?1\.0"),
    _row("CC-BY-4.0", "attribution 4.0", r"creative commons attribution 4\.0"),
    _row("CC-BY-SA-4.0", "sharealike 4.0", r"creative commons attribution sharealike 4\.0"),
    _row("CC0-1.0", "cc0", r"cc0 (?:v ?)?1\.0", "cc0 (?:universal|public domain)"),
    _row("CC0-1.0", "zero", r"creativecommons\.org publicdomain zero 1\.0"),
    _row("CDDL-1.0", "common development", r"common development and distribution license (?:version |v ?)?1\.0"),
    _row("EPL-1.0", "eclipse public", r"eclipse public license (?:version |v ?)?1\.0"),
    _row("EPL-2.0", "eclipse public", r"eclipse public license (?:version |v ?)?2\.0"),
    _row("GFDL-1.3-or-later", "free documentation", r"free documentation license version 1\.3 or any later"),
    *_gnu("GPL", "1.0"),
    *_gnu("GPL", "2.0"),
    *_gnu("GPL", "3.0"),
    _row(
        "HPND",
        "hereby granted",
        f"{_DOCUMENTATION}(?: and)?(?: with or)? without fee is hereby granted provided",
    ),
    _row("ISC", "hereby granted", f"{_ANY_PURPOSE} provided that the above copyright"),
    _row("ISC", "isc license", "isc license"),
    _row("JSON", "not evil", "the software shall be used for good not evil"),
    *_gnu("LGPL", "2.0"),
    *_gnu("LGPL", "2.1"),
    *_gnu("LGPL", "3.0"),
    _row(
        "LicenseRef-public-domain",
        "public domain",
        "(?<!unencumbered software )(?:placed|released|dedicated|put) (?:in|to|into|in to) the public domain",
        "(?:is|are) (?:hereby )?(?:in|part of) the public domain",
        "this .{0,40}is public domain",
    ),
    _row("MIT", "mit license", "mit license"),
    _row("MIT", "license mit", r"license mit\b"),
    _row("MIT", "obtaining a copy", f"{_MIT} and associated documentation files"),
    _row("MPL-1.1", "mozilla public", r"mozilla public license (?:version |v ?)?1\.1"),
    _row("MPL-2.0", "mozilla public", r"mozilla public license (?:version |v ?)?2(?:\.0)?(?![.0-9])"),
    _row("MPL-2.0", "mpl", r"mpl ?(?:v ?)?2\.0"),
    _row(
        "PSF-2.0",
        "psf",
        "psf license",
        r"psf 2(?:\.0)?\b",
        "licensed to (?:the )?psf under a contributor agreement",
    ),
    _row("PSF-2.0", "python software foundation license", "python software foundation license"),
    _row(
        "PostgreSQL",
        "written agreement",
        f"{_DOCUMENTATION} without fee and without a written agreement is hereby granted",
    ),
    _row("PostgreSQL", "postgresql license", "postgresql license"),
    _row("Unlicense", "unencumbered", "this is free and unencumbered software released into the public domain"),
    _row("Unlicense", "unlicense.org", r"unlicense\.org"),
    _row("WTFPL", "do what the", "do what the fuck you want to public license"),
    _row(
        "Zlib",
        "express or implied warranty",
        "provided as is without any express or implied warranty in no event will the authors be held liable "
        "for any damages arising from the use of this software permission is granted",
    ),
    _row("Zlib", "zlib", "zlib(?: libpng)? license"),
)


def find(data: bytes) -> list[str]:
    """Return the SPDX ids of the licences that `data` names, sorted, each once."""
    text = words(data)
    named = {row.spdx for row in TABLE if row.needle in text and row.pattern.search(text)}
    return sorted(named | set(tagged(data)))


def tagged(data: bytes) -> Iterable[str]:
    """Yield the licences of every SPDX-License-Identifier expression; an exception after WITH is not one."""
    for expression in _TAG.findall(data):
        for name in _NOT_AN_ID.sub(" ", expression.decode()).split():
            yield _OLD_GNU_ID.sub(_todays_id, name.rstrip(".:-"))


def _todays_id(old: re.Match[str]) -> str:
    return f"{old[1]}-or-later" if old[2] else f"{old[1]}-only"


def words(data: bytes) -> bytes:
    """Return `data` as lower-case words with a blank around each, said one way; empty if no licence can be in it.

    Letters, digits, plus and the point in a number are kept; all else, comment signs too, becomes blank.
    """
    plain = data.translate(_BLANKED) + b" "
    if not any(hint in plain for hint in _HINTS):
        return b""
    for end, kept in _SENTENCE_ENDS:
        plain = plain.replace(end, kept)
    text = b" " + b" ".join(plain.split()) + b" "
    for said, meant in _SAID_OTHERWISE:
        text = text.replace(said, meant)
    return _NOT_A_GRANT.sub(b" ", text)
