"""Press the buttons of the pages that the admin prints, with exactly the fields they hold."""

from __future__ import annotations

from html.parser import HTMLParser


class Form:
    """A form as a browser sees it: where it goes, how, its fields and its buttons."""

    def __init__(self, attributes):
        self.action = attributes.get("action") or ""
        self.method = (attributes.get("method") or "get").lower()
        self.fields = {}
        self.names = set()
        self.choices = {}
        self.buttons = []


class Forms(HTMLParser):
    """The forms of a page; checks that each field is inside one."""

    def __init__(self, html):
        super().__init__()
        self.forms = []
        self.form = self.name = self.select = self.button = None
        self.first = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "form":
            assert self.form is None, "A form in a form."
            self.form = Form(given)
            self.forms.append(self.form)
        elif self.form is None or "disabled" in given:
            return
        elif tag == "button":
            self.button = given.get("name"), given.get("value") or ""
            self.text = ""
        elif tag == "input":
            self.enter_input(given)
        elif tag == "textarea":
            self.name = given["name"]
            self.form.names.add(self.name)
            self.form.fields[self.name] = []
            self.text = ""
        elif tag == "select":
            self.select, self.first = given["name"], None
            self.form.names.add(self.select)
            self.form.fields[self.select] = []
        elif tag == "option" and self.select is not None:
            value = given.get("value", "")
            self.form.choices.setdefault(self.select, []).append(value)
            if "selected" in given:
                self.form.fields[self.select].append(value)
            self.first = value if self.first is None else self.first

    def enter_input(self, given):
        type_, name, value = given.get("type", "text"), given.get("name"), given.get("value") or ""
        if type_ == "submit":
            self.form.buttons.append((name, value, value))
            return
        self.form.names.add(name)
        if type_ in ("checkbox", "radio"):
            self.form.choices.setdefault(name, []).append(given.get("value") or "on")
        if name and (type_ not in ("checkbox", "radio") or "checked" in given):
            self.form.fields.setdefault(name, []).append(value)

    def handle_data(self, data):
        if self.name is not None or self.button is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag == "textarea" and self.name is not None:
            self.form.fields[self.name].append(self.text.removeprefix("\r").removeprefix("\n"))
            self.name = None
        elif tag == "button" and self.button is not None:
            self.form.buttons.append((*self.button, self.text.strip()))
            self.button = None
        elif tag == "select" and self.select is not None:
            if not self.form.fields[self.select] and self.first is not None:
                self.form.fields[self.select] = [self.first]
            self.select = None
        elif tag == "form":
            self.form = None


def press(client, response, button, *, follow=True, **typed):
    """
    Press the button with this name, or whose text begins so; ``typed`` is typed in before.

    Only fields that the page printed can be typed in, and only what it offers be chosen. A list
    ticks or chooses several.
    """
    found = []
    for form in Forms(response.content.decode()).forms:
        found += [(form, *one) for one in form.buttons if one[0] == button]
        found += [(form, *one) for one in form.buttons if one[2].startswith(button)]
    assert found, f"The page has no button {button!r}."
    form, name, value, _text = found[0]
    missing = typed.keys() - form.names
    assert not missing, f"The form has no fields {missing}, but {sorted(form.names)}."
    for field, chosen in typed.items():
        values = {str(one) for one in (chosen if isinstance(chosen, list) else [chosen])}
        unknown = values - set(form.choices.get(field, values))
        assert not unknown, f"The form offers no {unknown} of {field}."
    data = {**form.fields, **typed} | ({name: value} if name else {})
    address = form.action or response.request["PATH_INFO"]
    if not form.action and response.request["QUERY_STRING"]:
        address += f"?{response.request['QUERY_STRING']}"
    if form.method == "get":
        return client.get(form.action or response.request["PATH_INFO"], data, follow=follow)
    return client.post(address, data, follow=follow)
