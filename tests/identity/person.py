"""A person at the pages of the provider, without a browser: `python person.py NAME URL [CODE]`.

It follows redirects and sends each form, until a page has none: the response of a program on this
machine, or the end of the page for codes.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from urllib.parse import urljoin

import httpx2

from tests.kit.conditions import PATIENCE

_ROOT = Path(__file__).parents[2]

_FORM = re.compile(r'<form[^>]* action="([^"]+)"')
_INPUT = re.compile(r'<input[^>]* name="(\w+)"(?:[^>]* value="([^"]*)")?')


def build_browser(name: str) -> str:
    """Return a value of the variable BROWSER: a program that signs this person in."""
    # It imports modules of the tests, and starts in the folder of the command.
    program = ["env", f"PYTHONPATH={_ROOT}", sys.executable, __file__, name]
    return f"{shlex.join(program)} %s"


def sign_in(name: str, url: str, code: str = "", *, denies: bool = False) -> httpx2.Response:
    """Sign in at the pages of the provider; return the last one."""
    with httpx2.Client(timeout=PATIENCE, follow_redirects=True) as client:
        response = client.get(url)
        for _ in range(10):
            page = response.text
            address = str(response.url)
            form = _FORM.search(page)
            if form is None:
                return response
            typed = {"login": name, "password": "any", "user_code": code}
            fields = {field: typed.get(field) or value for field, value in _INPUT.findall(page)}
            if denies and 'name="abort"' in page:
                return client.post(urljoin(address, form[1]), data={**fields, "abort": "yes"})
            response = client.post(urljoin(address, form[1]), data=fields)
        raise SystemExit(f"no end of the forms at {response.url}")


if __name__ == "__main__":
    print(sign_in(*sys.argv[1:]).text)
