"""Invalid claims, with the security cases D01 to D16, and some valid ones."""

from __future__ import annotations

from typing import Any

from tests.kit.forged_tokens import NOW

__all__ = ["BAD", "FINE", "RULES"]

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "audience": {"verify_audience": True},
    "issuer": {"issuer": "https://issuer.example"},
    "exp": {"require_exp": True},
    "sub": {"require_sub": True},
}
"""The rules of `[authorization]`, by the names that are used below."""

Claims = Any

FINE: dict[str, tuple[Claims, str]] = {
    "nothing": ({}, "plain"),
    "exp ahead": ({"exp": NOW + 1}, "plain"),
    "exp a fraction ahead": ({"exp": NOW + 0.5}, "exp"),
    "exp in 9999": ({"exp": 253_402_300_799}, "plain"),
    "exp as an exponent": (b'{"exp":2e9}', "plain"),
    "iat within leeway": ({"iat": NOW + 10}, "plain"),
    "nbf within leeway": ({"nbf": NOW + 10}, "plain"),
    "iat long ago": ({"iat": 0}, "plain"),
    "sub": ({"sub": "me"}, "sub"),
    "sub of one character": ({"sub": "x"}, "plain"),
    "sub inner space": ({"sub": "Jane Doe"}, "plain"),
    "sub not ASCII": ({"sub": "Zo\u00eb"}, "plain"),
    "sub not NFC": ({"sub": "Zoe\u0308"}, "plain"),
    "sub 255": ({"sub": "x" * 255}, "plain"),
    "sub 255 emoji": ({"sub": "\U0001f600" * 255}, "plain"),
    "sub sa": ({"sub": "sa"}, "plain"),
    "sub local": ({"sub": "local"}, "plain"),
    "sub with sa inside": ({"sub": "visa:1"}, "plain"),
    "sub system without a colon": ({"sub": "systems"}, "plain"),
    "sub one underscore": ({"sub": "_me"}, "plain"),
    "aud string": ({"aud": "agentctl"}, "audience"),
    "aud in array": ({"aud": ["x", "agentctl"]}, "audience"),
    "aud sixteen": ({"aud": ["x"] * 15 + ["agentctl"]}, "audience"),
    "aud of another, not compared": ({"aud": "x"}, "plain"),
    "iss": ({"iss": "https://issuer.example"}, "issuer"),
    "iss not read": ({"iss": 5}, "plain"),
    "scopes malformed": ({"scopes": 5}, "plain"),
    "session": ({"session_id": "s1"}, "plain"),
    "session 128": ({"session_id": "x" * 128}, "plain"),
    "D16 unknown claims": ({"x": {"y": [1, "z" * 4000]}, "scope": "agent_os:admin"}, "plain"),
    "64 digits": (b'{"x":' + b"9" * 64 + b"}", "plain"),
    "64 digits of a fraction": (b'{"x":0.' + b"1" * 62 + b"}", "plain"),
    "nesting to the limit, twice": (
        b'{"x":' + b"[" * 7 + b"]" * 7 + b',"y":' + b"[" * 7 + b"]" * 7 + b"}", "plain"
    ),
    "nesting to the limit": (b'{"x":' + b"[" * 7 + b"]" * 7 + b"}", "plain"),
}  # fmt: skip

_TIMES = (
    None, "", str(NOW + 99), " 99 ", "9_9", "\u0661", "0x7fffffff", [NOW + 99], {}, True, False, -1,
    -0.001, 1e308, 10**20, 10**60, 253_402_300_800,
)  # fmt: skip

_SUBJECTS = (
    None, 1, 0, 1.5, True, ["me"], {"a": 1}, "", " ", " me", "me ", "\u00a0me", "me\u3000", "m\0e",
    "m\ne", "m\re", "m\te", "m\x1be", "m\x7fe", "m\x85e", "\ud800", "me\udfff", "m\u202ee",
    "m\u2066e", "m\u200be", "m\u200de", "\ufeffme", "m\u00ade", "m\u2028e", "m\u2029e",
    "m\U000e0001e", "x" * 256, "\U0001f600" * 256,
)  # fmt: skip

_RESERVED = (
    "sa:x", "SA:x", "Sa:", "sa:", "__scheduler__", "__x", "\uff53\uff41:x", "sa\uff1ax",
    "\u017fa:x",
    "\uff3f\uff3fx", "_\uff3fx", "__", "\uff33\uff21\uff1a\uff58", "\u24e2\u24d0:x", "sa\ufe55x",
    "sa\u2a74x", "\U0001d42c\U0001d41a:x", "s\u034fa:x", "sa\ufe0f:x", "\u115fsa:x", "sa\u3164:x",
    "_\u034f_x", "\ufe4d\ufe4ex", "local:root", "LOCAL:root", "\uff4c\uff4f\uff43\uff41\uff4c:x",
    "loc\u00aal:x", "system:", "System:x", "\u017fystem:x", "\u017fy\u017ftem\uff1ax",
    "s\ufe00ystem:",
)  # fmt: skip

_AUDIENCES = (
    5, True, "", [], None, {}, [["agentctl"]], ["agentctl", 5], ["agentctl", None], "agentct",
    "agentctlx", "AgentCTL", "xagentctl", " agentctl", "agentctl ", "agentctl/", "agentctl\0",
    "agentctl,x", ["x"] * 16 + ["agentctl"], ["agentctl"] * 17, {"agentctl": 1}, "agentct\u217c",
)  # fmt: skip

_ISSUERS = (
    "https://issuer.exampl", "https://issuer.example/", "HTTPS://issuer.example",
    "https://issuer.example.evil", "xhttps://issuer.example", ["https://issuer.example"], 5, None,
    "", {}, "https://issuer.example ", "https://issuer.example\0",
)  # fmt: skip

_SESSIONS = (".", "..",
    None, 5, True, ["s"], {}, "", "a b", "a/b", "s\0", "s\n", "../s", "s%2f", "s\u00e9", "\ud800",
    "x" * 129,
)  # fmt: skip

BAD: dict[str, tuple[Claims, str, str]] = {
    **{f"D01 exp {value!r}": ({"exp": value}, "plain", "claims.exp") for value in _TIMES},
    **{
        f"D02 exp {value!r}": ({"exp": value}, "plain", "claims.exp")
        for value in (0, NOW, NOW - 1, NOW - 0.001, NOW - 10, float(NOW))
    },
    **{
        f"D01 exp {text[:8]!r}": (b'{"exp":' + text + b"}", "plain", "claims.form")
        for text in (b"NaN", b"Infinity", b"1e999", b"1" + b"0" * 4_000, b"01", b"+1", b".5")
    },
    **{
        f"D03 {name} {value!r}": ({name: value}, "plain", f"claims.{name}")
        for name in ("nbf", "iat")
        for value in (NOW + 11, NOW + 10.5, 253_402_300_799, 1e300, *_TIMES)
    },
    "D01 exp absent, required": ({"sub": "me"}, "exp", "claims.exp"),
    "D10 sub absent, required": ({"exp": NOW + 9}, "sub", "claims.sub"),
    **{f"D10 sub {value!r}"[:60]: ({"sub": value}, "plain", "claims.sub") for value in _SUBJECTS},
    **{f"D11 sub {value!r}": ({"sub": value}, "plain", "claims.sub") for value in _RESERVED},
    "D06 aud absent": ({}, "audience", "claims.aud"),
    **{
        f"D06 aud {value!r}"[:60]: ({"aud": value}, "audience", "claims.aud")
        for value in _AUDIENCES
    },
    "D06 aud mixed, not compared": ({"aud": ["x", 5]}, "plain", "claims.aud"),
    "D06 aud number, not compared": ({"aud": 5}, "plain", "claims.aud"),
    "D09 iss absent": ({}, "issuer", "claims.iss"),
    **{f"D09 iss {value!r}": ({"iss": value}, "issuer", "claims.iss") for value in _ISSUERS},
    **{
        f"D15 session {value!r}"[:60]: ({"session_id": value}, "plain", "claims.session_id")
        for value in _SESSIONS
    },
    "J13 too deep behind many that are not": (
        b'{"a":[[],[],[],[],[],[]],"x":' + b"[" * 8 + b"]" * 8 + b"}",
        "plain",
        "claims.form",
    ),
    "J14 65 digits": (b'{"x":' + b"9" * 65 + b"}", "plain", "claims.form"),
    "J14 65 digits of a fraction": (b'{"x":0.' + b"1" * 63 + b"}", "plain", "claims.form"),
    "J12 sub twice": (b'{"sub":"a","sub":"b"}', "plain", "claims.form"),
    "J12 sub escaped": (rb'{"sub":"a","\u0073ub":"b"}', "plain", "claims.form"),
    "J12 exp twice": (b'{"exp":1900000000,"exp":1}', "plain", "claims.form"),
    "J12 scopes twice": (b'{"scopes":[],"scopes":["agent_os:admin"]}', "plain", "claims.form"),
}
