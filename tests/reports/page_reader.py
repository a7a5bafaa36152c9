"""Read the HTML pages that memcurse writes, as a strict parser does."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Reader(HTMLParser):
    """Elements and their text; an element that is never closed, or closed twice, is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str | None, str] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            name = self.elements[-1][1].get("id")
            self.scripts[name] = self.scripts.get(name, "") + data


def assert_self_contained(page: Reader) -> None:
    """No element loads anything or has a script for an attribute, and the policy forbids both."""
    loading = {"src", "href", "action", "data", "srcset", "poster"}
    for tag, attributes in page.elements:
        for name in loading & attributes.keys():
            assert (attributes[name] or "").startswith("#"), (tag, name)
        assert not any(name.startswith("on") for name in attributes)
    names = [tag for tag, _ in page.elements]
    assert names.count("script") == 3
    assert "iframe" not in names
    policy = next(found for _, found in page.elements if "http-equiv" in found)
    assert str(policy["content"]).startswith("default-src 'none'")
