"""Probes for monitors: ``path("pq/", include("django_perfectqueue.health.urls"))``."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "perfectqueue-health"
urlpatterns = [
    path("live", views.live, name="live"),
    path("ready", views.ready, name="ready"),
    path("queues", views.queues, name="queues"),
]
