"""Claims about the licence table: one short text for each row, and texts that name none."""

import pytest

from tests.agent_tools import module

licenses = module("license/licenses.py")

BSD = b"Redistribution and use in source and binary forms, with or without\nmodification, are permitted, if: "
ISC = (
    b"Permission to use, copy, modify, and/or distribute this software for any\n"
    b"purpose with or without fee is hereby granted"
)
GRANT = b"GNU General Public License as published by the Free Software Foundation; "
DOCUMENTED = b"Permission to use, copy, modify, and distribute this software and its documentation for any purpose"

TEXTS = [
    ("0BSD", b"License: 0BSD, see the 0BSD license"),
    ("0BSD", ISC + b".\n\nTHE SOFTWARE IS PROVIDED"),
    ("AGPL-3.0-only", b"version 3 of the GNU Affero General Public License"),
    ("AGPL-3.0-or-later", b"AGPLv3+"),
    ("Apache-1.1", b"Apache Software License, Version 1.1"),
    ("Apache-2.0", b"Licensed under the Apache License, Version 2.0 (the"),
    ("Apache-2.0", b"http://www.apache.org/licenses/LICENSE-2.0"),
    ("Apache-2.0", b'license="Apache-2.0"'),
    ("Apache-2.0", b"the Apache 2.0 license"),
    ("Artistic-2.0", b"The Artistic License 2.0"),
    ("BSD-2-Clause", b"the BSD-2-Clause licence"),
    ("BSD-2-Clause", BSD + b"1. Redistributions of source code must retain"),
    ("BSD-3-Clause", b"License: BSD 3-Clause"),
    ("BSD-3-Clause", BSD + b"3. Neither the name of the copyright holder"),
    ("BSD-4-Clause", BSD + b"3. All advertising materials mentioning features. 4. Neither the name of"),
    ("BSL-1.0", b"Distributed under the Boost Software License, Version 1.0."),
    ("CC-BY-4.0", b"Creative Commons Attribution 4.0 licence"),
    ("CC-BY-SA-4.0", b"Creative Commons Attribution-ShareAlike 4.0 licence"),
    ("CC0-1.0", b"CC0 1.0 Universal"),
    ("CC0-1.0", b"https://creativecommons.org/publicdomain/zero/1.0/"),
    ("CDDL-1.0", b"Common Development and Distribution License, Version 1.0"),
    ("EPL-1.0", b"Eclipse Public License v1.0"),
    ("EPL-2.0", b"Eclipse Public License 2.0"),
    ("GFDL-1.3-or-later", b"GNU Free Documentation License, Version 1.3 or any later version"),
    ("GPL-1.0-only", b"GNU General Public License, version 1"),
    ("GPL-1.0-or-later", GRANT + b"either version 1, or (at your option) any later version"),
    ("GPL-2.0-only", GRANT + b"version 2 of the License."),
    ("GPL-2.0-only", b"GNU GENERAL PUBLIC LICENSE\n  Version 2, June 1991"),
    ("GPL-2.0-only", b"under version 2 of the GPL"),
    ("GPL-2.0-or-later", GRANT + b"either version 2 of the License, or (at your option) any later version."),
    ("GPL-2.0-or-later", b"GPLv2+"),
    ("GPL-2.0-or-later", b"version 2 or later of the GNU General Public License"),
    ("GPL-3.0-only", b"GPL-3.0-only"),
    ("GPL-3.0-only", b"GNU GPL v3"),
    ("GPL-3.0-or-later", b"version 3 of the GNU General Public License, or any later version"),
    ("HPND", DOCUMENTED + b" and without fee is hereby granted, provided that"),
    ("ISC", ISC + b", provided that the above copyright notice"),
    ("ISC", b"under the ISC licence"),
    ("JSON", b"licence: The Software shall be used for Good, not Evil."),
    ("LGPL-2.0-only", b"GNU Library General Public License version 2"),
    ("LGPL-2.0-or-later", b"GNU Library General Public License, version 2 or any later version"),
    ("LGPL-2.1-only", b"LGPL v2.1"),
    ("LGPL-2.1-or-later", b"GNU Lesser General Public License (LGPL) version 2.1 or later"),
    ("LGPL-3.0-only", b"LGPLv3"),
    ("LGPL-3.0-or-later", b"LGPL-3.0-or-later"),
    ("LicenseRef-public-domain", b"This file has been placed in the public domain."),
    ("LicenseRef-public-domain", b"It is in the public domain"),
    ("LicenseRef-public-domain", b"This code is public domain"),
    ("MIT", b"the MIT License"),
    ("MIT", b"License: MIT"),
    ("MIT", b"Permission is hereby granted, free of charge, to any person obtaining a copy of this software "
     b"and associated documentation files"),
    ("MPL-1.1", b"Mozilla Public License Version 1.1"),
    ("MPL-2.0", b"Mozilla Public License, v. 2.0"),
    ("MPL-2.0", b"License: MPL 2.0"),
    ("PSF-2.0", b"Licensed to PSF under a Contributor Agreement."),
    ("PSF-2.0", b"PSF LICENSE AGREEMENT FOR PYTHON"),
    ("PSF-2.0", b"the Python Software Foundation License"),
    ("PostgreSQL", b"The PostgreSQL Licence"),
    ("PostgreSQL", DOCUMENTED + b", without fee, and without a written agreement is hereby granted"),
    ("Unlicense", b"This is free and unencumbered software released into the public domain."),
    ("Unlicense", b"see <https://unlicense.org>"),
    ("WTFPL", b"DO WHAT THE FUCK YOU WANT TO PUBLIC LICENSE"),
    ("Zlib", b"zlib/libpng license"),
    ("Zlib", b"This software is provided 'as-is', without any express or implied warranty. In no event will "
     b"the authors be held liable for any damages arising from the use of this software. Permission is "
     b"granted"),
]  # fmt: skip


@pytest.mark.parametrize(("spdx", "text"), TEXTS, ids=[f"{i}-{spdx}" for i, (spdx, _) in enumerate(TEXTS)])
def test_a_phrase_maps_to_its_licence_alone(spdx: str, text: bytes) -> None:
    assert licenses.find(text) == [spdx]


@pytest.mark.parametrize(("spdx", "text"), TEXTS, ids=[f"{i}-{spdx}" for i, (spdx, _) in enumerate(TEXTS)])
@pytest.mark.parametrize("leader", [b"\n# ", b"\r\n * ", b"\n// ", b"\n;; ", b"\ndnl ", b"\n-- "])
def test_a_phrase_is_found_across_comment_lines(spdx: str, text: bytes, leader: bytes) -> None:
    assert licenses.find(leader + leader.join(text.split())) == [spdx]


def test_every_row_of_the_table_has_an_example_text() -> None:
    used = {row for row in licenses.TABLE for _, text in TEXTS if row.pattern.search(licenses.words(text))}
    assert [row for row in licenses.TABLE if row not in used] == []


@pytest.mark.parametrize(("spdx", "text"), TEXTS, ids=[f"{i}-{spdx}" for i, (spdx, _) in enumerate(TEXTS)])
def test_every_match_contains_the_search_string(spdx: str, text: bytes) -> None:
    found = [(row.needle, row.pattern.search(licenses.words(text))) for row in licenses.TABLE]
    assert all(needle in match[0] for needle, match in found if match)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\0" * 4096, b"licence", b"See the LICENSE file.", b"license_key = read()", b"domain",
        b"the public domain is large", b"a driving license, version 2.0", b"permission denied",
        b"Apache web server 2.0", b"the Mozilla browser", b"commit license", b"license mitigation",
        b"the GNU General Public License.\n\n2. Conveying", b"GPL version 20", b"GPLv2.5", b"the gpl",
        b"redistribution of wealth", b"zlib 1.2.11", b"psf = 1", b"SPDX-License-Identifier:", b"cc0",
    ],
)  # fmt: skip
def test_a_text_without_a_licence_gives_none(text: bytes) -> None:
    assert licenses.find(text) == []


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        (b"MIT", ["MIT"]),
        (b"MIT */", ["MIT"]),
        (b"Foo-1.0 -->", ["Foo-1.0"]),
        (b"(EPL-2.0 OR GPL-2.0-only WITH Classpath-exception-2.0) AND BSD-3-Clause",
         ["BSD-3-Clause", "EPL-2.0", "GPL-2.0-only"]),
        (b"GPL-2.0", ["GPL-2.0-only"]),
        (b"GPL-2.0+", ["GPL-2.0-or-later"]),
        (b"LGPL-2.1-or-later", ["LGPL-2.1-or-later"]),
        (b"LicenseRef-Acme and words after it", ["LicenseRef-Acme"]),
        (b'" + expression', []),
    ],
)  # fmt: skip
def test_an_spdx_expression_gives_its_ids(expression: bytes, ids: list[str]) -> None:
    assert list(dict.fromkeys(sorted(licenses.tagged(b"# SPDX-License-Identifier: " + expression + b"\n")))) == ids


def test_several_licences_are_sorted_and_each_is_named_once() -> None:
    text = b"MIT License. Also the MIT License, or GPLv2+, or the Apache License, Version 2.0."
    assert licenses.find(text) == ["Apache-2.0", "GPL-2.0-or-later", "MIT"]


def test_text_that_only_explains_a_licence_is_not_a_grant() -> None:
    text = b"How to Apply These Terms to Your New Programs: ... GPL version 2 or (at your option) any later"
    assert licenses.find(text) == []
