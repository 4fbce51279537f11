"""The admin twice: the usual site, and one of the same pages with another name and path."""

from django.contrib import admin
from django.urls import include, path

from tests.skins.settings import INSTALLED_APPS

ops = admin.site.__class__("ops")
for model, door in admin.site._registry.items():
    ops.register(model, type(door))

urlpatterns = [path("admin/", admin.site.urls), path("ops/", ops.urls)]
if "grappelli" in INSTALLED_APPS:
    urlpatterns.append(path("grappelli/", include("grappelli.urls")))
