from __future__ import annotations

from django.contrib import admin
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest

from .intake import entitle
from .models import Customer, Report, Upload


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    list_display = ["name", "slug", "plan"]

    def save_model(
        self, request: HttpRequest, obj: Customer, form: ModelForm, change: bool
    ) -> None:
        super().save_model(request, obj, form, change)
        entitle(obj)


class ReadOnlyAdmin(admin.ModelAdmin):
    """What comes from the page and the tasks is only looked at here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Upload)
class UploadAdmin(ReadOnlyAdmin):
    list_display = ["name", "customer", "uploaded_at"]
    list_filter = ["customer"]
    list_select_related = ["customer"]
    search_fields = ["name"]


@admin.register(Report)
class ReportAdmin(ReadOnlyAdmin):
    list_display = ["upload", "rows", "total", "finished_at"]
    list_filter = ["upload__customer"]
    list_select_related = ["upload__customer"]
