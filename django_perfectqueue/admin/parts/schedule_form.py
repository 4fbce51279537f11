"""The form of a schedule: it refuses what the API would, and knows the ticks to come."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import islice
from typing import Any

from django import forms
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_perfectqueue import store
from django_perfectqueue.conf import options
from django_perfectqueue.exceptions import (
    InvalidScheduleError,
    InvalidTaskError,
    PayloadError,
    PerfectQueueError,
)
from django_perfectqueue.lib.durations import seconds_in
from django_perfectqueue.models import Schedule
from django_perfectqueue.payload.codecs import decode
from django_perfectqueue.payload.context import masked
from django_perfectqueue.queue import database
from django_perfectqueue.schedules.schedules import check_user
from django_perfectqueue.schedules.terms import (
    CHECKS,
    Terms,
    apply,
    checked_name,
    checked_payload,
    checked_type,
    known_types,
)
from django_perfectqueue.store.schedules import due_time, timing_of

from .rules import RuleForm, Suggesting

SECONDS = _("Seconds, or a span such as 15m.")


class SpanField(forms.CharField):
    """Seconds, or a span such as 15m."""

    def to_python(self, value: object) -> float | None:  # type: ignore[override]
        text = super().to_python(value)
        if not text:
            return None
        try:
            found = seconds_in(text)
            return float(text) if found is None else found
        except ValueError:
            message = gettext("Give seconds, or a span such as '90s', '15m' or '1d12h'.")
            raise forms.ValidationError(message) from None

    def prepare_value(self, value: object) -> object:
        return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else value

    def has_changed(self, initial: object, data: object) -> bool:
        try:
            return self.to_python(data) != (initial or None)
        except forms.ValidationError:
            return True


def span_field(name: str, text: Any = "") -> SpanField:
    field: Any = Schedule._meta.get_field(name)
    label, help_text = field.verbose_name.capitalize(), text or field.help_text or SECONDS
    return SpanField(label=label, required=False, help_text=help_text)


class ScheduleForm(RuleForm):
    """A schedule as people write it; ``terms`` are those of Schedules.put() once it is valid."""

    type = forms.CharField(
        label=_("Type"), help_text=_("What handles its tasks; only what is registered.")
    )
    data = forms.JSONField(  # type: ignore[assignment]
        label=_("Data"), required=False, help_text=_("What its tasks get, as JSON.")
    )
    every = span_field("every", SECONDS)
    time_limit = span_field("time_limit")
    expires_after = span_field("expires_after")
    delay = span_field("delay")
    jitter = span_field("jitter")
    deadline = span_field("deadline")

    class Meta:
        model = Schedule
        fields = ("name", "type", *CHECKS)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if not self.instance.pk:
            self.initial["queue"] = self.initial.get("queue") or options().DEFAULT_QUEUE
        if "type" in self.fields:
            self.fields["type"].widget = Suggesting(sorted({*known_types(using=database())}))
        if "data" in self.fields and self.instance.pk:
            self.prepare_data()

    @classmethod
    def preview(cls, values: object) -> ScheduleForm:
        """Return the form for values of which only the timing is looked at."""
        form = cls(values)
        timing = ("cron", "every", "timezone", "starts_at", "ends_at", "delay", "jitter")
        form.fields = {name: form.fields[name] for name in timing}
        return form

    def prepare_data(self) -> None:
        """Show the data; what is masked, or can't be read, is shown only, and stays."""
        try:
            found = decode(self.instance.payload)
        except PayloadError:
            found = None
            self.fields["data"].disabled = True
        shown = masked(found)
        self.fields["data"].disabled |= shown != found
        self.initial["data"] = shown

    def payload_data(self) -> object:
        """Return the data to store; raise PayloadError for stored data that can't be read."""
        if self.fields["data"].disabled:
            return decode(self.instance.payload)
        return self.cleaned_data["data"]

    def clean(self) -> dict[str, object]:
        cleaned: dict[str, object] = super().clean() or self.cleaned_data
        now = store.records.clock(using=database())
        terms: Any = {name: cleaned[name] for name in CHECKS if name in cleaned}
        if "limits" in terms:
            terms["limits"] = [part for part in terms["limits"].split(",") if part]
        for name in list(terms):
            self.check(name, CHECKS[name], name, terms[name], now)
        self.check("name", checked_name, cleaned.get("name") or self.instance.name or "-")
        if (field := self.fields.get("data")) and not field.disabled:
            self.check("data", checked_payload, cleaned.get("data"), cleaned.get("type") or "")
        if cleaned.get("type"):
            self.check("type", lambda type_: checked_type(type_, using=database()), cleaned["type"])
        if not self.errors:
            blank = Schedule(name=self.instance.name)
            starts, ends = terms.get("starts_at"), terms.get("ends_at")
            place = "ends_at" if starts and ends and ends < starts else "cron"
            self.check(place, apply, blank, terms, now)
            self.row = blank
        if not self.errors and "user" in terms:
            former = {"user": self.initial.get("user")} if self.instance.pk else None
            self.check("user", lambda: check_user(self.row, former, using=database()))
        self.terms: Terms = terms
        return cleaned

    def check(self, name: str, function: Any, *values: Any) -> None:
        """Add what a check of the API raises to its field."""
        try:
            function(*values)
        except (InvalidScheduleError, InvalidTaskError, PerfectQueueError) as error:
            self.add_error(name if name in self.fields else None, str(error))

    def ticks(self, most: int) -> list[datetime]:
        """Return the first ticks from now; nothing where it is not valid."""
        if not self.is_valid():
            return []
        now = store.records.clock(using=database())
        return [due_time(self.row, tick) for tick in islice(timing_of(self.row).after(now), most)]


def data_shown(row: Schedule) -> str:
    """Return the data as JSON for who may only look, with what is sensitive masked."""
    try:
        return json.dumps(masked(decode(row.payload)), ensure_ascii=False)
    except PayloadError:
        return gettext("It can't be read.")
